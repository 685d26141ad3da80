"""Calls that XLA divides among the GPUs of one process; skipped where there is only one."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing import programs  # before the first computation
from testing.spmd import sharded
from torch.nn import functional

import torch_xla_ext
from torch_xla_ext import ops

BATCH, HEADS = ("x", None, None, None), (None, "x", None, None)
MATRIX_VECTOR = r"""
extern "C" __global__ void matrix_vector(const float* a, const float* b, float* out, int rows,
                                         int columns) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum = 0;
  for (int i = 0; i < columns; ++i) sum += a[(long)row * columns + i] * b[i];
  out[row] = sum;
}
"""


@pytest.fixture(scope="module")
def count() -> int:
    xr.use_spmd()
    found = xr.global_runtime_device_count()
    if found < 2:
        pytest.skip("needs two GPUs")
    return found


@pytest.fixture(scope="module")
def mesh(count: int) -> xs.Mesh:
    return xs.Mesh(np.arange(count), (count,), ("x",))


def assert_close(result: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    difference = (result.detach().cpu().double() - expected.detach()).abs().max()
    assert difference <= tolerance * expected.abs().max()


def collectives(function: Callable[[], torch.Tensor], target: str) -> list[str]:
    """The collectives of the program with this kernel."""
    with programs.compiled() as compiled:
        function()
        torch_xla.sync()
    (program,) = [text for text in compiled if target in text]
    return [each.split()[0] for each in programs.collectives(program)]


@pytest.mark.parametrize(
    ("kv_heads", "spec", "bias"),
    [
        (8, BATCH, None),
        (4, BATCH, None),
        (8, HEADS, None),
        (4, HEADS, None),
        (1, HEADS, None),
        (8, HEADS, (1, 1, 256, 256)),
        (8, BATCH, (8, 1, 256, 256)),
        (4, HEADS, (8, 8, 256, 256)),
    ],
    ids=str,
)
def test_attention(
    mesh: xs.Mesh, count: int, kv_heads: int, spec: tuple, bias: tuple | None
) -> None:
    """cuDNN's attention, forward and backward, of other operations' results, against float64."""
    torch.manual_seed(0)
    values = [torch.randn(8, heads, 256, 128).bfloat16() for heads in (8, kv_heads, kv_heads)]
    has_own_heads = spec == BATCH or kv_heads % count == 0
    specs = [spec, *[spec if has_own_heads else None] * 2]
    operands = [sharded(v, mesh, s).requires_grad_() for v, s in zip(values, specs, strict=True)]
    expected = [value.double().requires_grad_() for value in values]
    mask = None if bias is None else torch.randn(bias).bfloat16()
    options = {"is_causal": bias is None, "enable_gqa": True}
    results = []

    def attend() -> torch.Tensor:
        result = functional.scaled_dot_product_attention(
            *[operand * 1 for operand in operands],
            attn_mask=None if mask is None else mask.to("xla"),
            **options,
        )
        (result.float() ** 2).sum().backward()
        results.append(result)
        return result

    found = collectives(attend, "__cudnn$fmha")
    wanted = functional.scaled_dot_product_attention(
        *expected, attn_mask=None if mask is None else mask.double(), **options
    )
    (wanted**2).sum().backward()
    assert_close(results[0], wanted, 2e-2)
    for operand, other in zip(operands, expected, strict=True):
        assert_close(operand.grad, other.grad, 3e-2)
    # Gradients of a head of keys that several GPUs share are sums.
    assert set(found) == (set() if has_own_heads else {"all-reduce"})


def test_sums(mesh: xs.Mesh) -> None:
    kernel = torch_xla_ext.cuda_kernel(
        MATRIX_VECTOR,
        "matrix_vector",
        signature="(a: F32[n, t], b: F32[t]) -> (out: F32[n])",
        parameters="rows: i32, columns: i32",
        grid=lambda args: (args["rows"] + 127) // 128,
        block=128,
    )
    torch_xla_ext.define_operator(
        "several_gpus::matrix_vector(Tensor a, Tensor b) -> Tensor",
        target=kernel,
        attributes=lambda a, b: {"rows": a.shape[0], "columns": a.shape[1]},
        sharding_rule="n t, t -> n; sum t",
    )
    a, b = torch.randn(512, 256), torch.randn(256)
    for spec, wanted in (((None, "x"), ["all-reduce"]), (("x", None), [])):
        results = []
        operands = sharded(a, mesh, spec), sharded(b, mesh, None)

        def call(operands: tuple = operands, results: list = results) -> torch.Tensor:
            results.append(torch.ops.several_gpus.matrix_vector(operands[0] * 1, operands[1]))
            return results[0]

        assert collectives(call, "XlaGpuCompiledKernel") == wanted
        assert_close(results[0], a.double() @ b.double(), 1e-4)


def test_caches_in_place(mesh: xs.Mesh) -> None:
    expected = [torch.randn(64, 16, 8, 64).bfloat16() for _ in range(2)]
    caches = [sharded(cache, mesh, (None, None, "x", None)) for cache in expected]
    for step in range(3):
        key, value = torch.randn(2, 4, 8, 64).bfloat16()
        slots = torch.tensor([5, 40, 100, 700]) + step
        args = [sharded(each, mesh, None) for each in (key, value, slots)]
        ops.kv_cache_update(args[0] * 2, args[1] * 2, args[2], *caches)
        torch_xla.sync()
        ops.kv_cache_update(key * 2, value * 2, slots, *expected)
    for cache, other in zip(caches, expected, strict=True):
        assert torch.equal(cache.cpu(), other)
