"""FlashInfer's functions by load_kernels, against torch; it needs flashinfer-python and nvcc."""

import importlib.util
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

import torch_xla_ext

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None, reason="flashinfer is not installed"
)


@pytest.fixture(scope="module")
def kernel() -> SimpleNamespace:
    return torch_xla_ext.load_kernels("flashinfer")


def close(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result.cpu().float(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms(kernel: SimpleNamespace, dtype: torch.dtype, device: torch.device) -> None:
    x, residual = (torch.randn(64, 512).to(dtype) for _ in range(2))
    weight = torch.randn(512).to(dtype)
    on_device = [each.to(device) for each in (x, residual, weight)]
    wide = functional.rms_norm(x.float(), (512,), eps=1e-6)
    close(kernel.rmsnorm(on_device[0], on_device[2]), wide * weight.float())
    heads = kernel.rmsnorm(on_device[0].view(8, 8, 512), on_device[2])
    close(heads.view(64, 512), wide * weight.float())
    close(kernel.gemma_rmsnorm(on_device[0], on_device[2]), wide * (1 + weight.float()))
    y, total = kernel.fused_add_rmsnorm(*on_device)
    close(total, x.float() + residual.float())
    expected = functional.rms_norm(total.cpu().float(), (512,), weight.float(), 1e-6)
    close(y, expected)
    assert torch.equal(on_device[1].cpu(), residual)


def test_layernorm(kernel: SimpleNamespace, device: torch.device) -> None:
    x, gamma, beta = torch.randn(64, 512).bfloat16(), torch.randn(512), torch.randn(512)
    result = kernel.layernorm(*(each.to(device) for each in (x, gamma, beta)))
    close(result, functional.layer_norm(x.float(), (512,), gamma, beta, 1e-6))


def test_activations(kernel: SimpleNamespace, device: torch.device) -> None:
    x = torch.randn(3, 40, 2 * 256).bfloat16()
    left, right = x.float().chunk(2, -1)
    for name, function in [
        ("silu", functional.silu),
        ("gelu", functional.gelu),
        ("gelu_tanh", lambda left: functional.gelu(left, approximate="tanh")),
    ]:
        close(getattr(kernel, f"{name}_and_mul")(x.to(device)), function(left) * right)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rotary_embeddings(
    kernel: SimpleNamespace, dtype: torch.dtype, device: torch.device
) -> None:
    q, k = torch.randn(10, 8, 128).bfloat16(), torch.randn(10, 2, 128).bfloat16()
    positions = torch.arange(5, 15).to(dtype)
    angles = torch.arange(32)[:, None] * 1e4 ** (-torch.arange(0, 128, 2) / 128)
    cache = torch.cat([angles.cos(), angles.sin()], 1)
    cos, sin = cache[positions.long()].chunk(2, 1)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        left, right = x.float().chunk(2, -1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat([left * c - right * s, right * c + left * s], -1)

    tensors = [each.to(device) for each in (q, k)]
    for results in (
        kernel.apply_rope_pos_ids(*tensors, positions.to(device), 128),
        kernel.apply_rope_pos_ids_cos_sin_cache(*tensors, cache.to(device), positions.to(device)),
    ):
        for result, x in zip(results, (q, k), strict=True):
            close(result, rotated(x))
