"""torch_xla's operators for TPUs give right numbers on CPUs and GPUs.

For CPU and CUDA tensors, upstream itself returns uninitialized memory.
"""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch_xla.experimental import custom_kernel

# Operators of upstream's file whose kernels are for TPUs.
OPERATORS = sorted(
    name.removesuffix("_non_xla") for name in vars(custom_kernel) if name.endswith("_non_xla")
)
DEVICES = ("cpu", "xla")


def attention(shape: tuple[int, ...] = (2, 3, 8, 16)) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape) for _ in range(3)]


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=mask, scale=scale
    ).float()


def pages() -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    return {
        "q": torch.randn(2, 4, 32),
        "k_pages": torch.randn(2, 6, 8, 32),
        "v_pages": torch.randn(2, 6, 8, 32),
        "lengths": torch.tensor([13, 5], dtype=torch.int32),
        "page_indices": torch.tensor([[4, 2], [3, 0]], dtype=torch.int32),
    }


def attended_pages() -> torch.Tensor:
    """Attention without a scale, like upstream's kernels."""
    args, rows = pages(), []
    for s, (length, table) in enumerate(zip(args["lengths"], args["page_indices"], strict=True)):
        keys, values = (
            args[name][:, table].flatten(1, 2)[:, :length].repeat_interleave(2, 0)
            for name in ("k_pages", "v_pages")
        )
        rows.append(masked_attention(args["q"][s, :, None], keys, values, None, 1.0)[:, 0])
    return torch.stack(rows)


def run_flash_attention(device: str, function: Callable[..., torch.Tensor]) -> None:
    q, k, v = attention()
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    for option, mask in ((False, None), (True, causal)):
        result = function(*(t.to(device) for t in (q, k, v)), option)
        torch.testing.assert_close(result.cpu(), masked_attention(q, k, v, mask, 1.0))


def run_paged_attention(device: str, function: Callable[..., torch.Tensor]) -> None:
    args = [tensor.to(device) for tensor in pages().values()]
    result = function(*args, pages_per_compute_block=2)
    torch.testing.assert_close(result.cpu(), attended_pages())


def run_multi_queries_paged_attention(device: str, function: Callable[..., torch.Tensor]) -> None:
    args = pages()
    args["q"] = args["q"][:, None]
    ones = torch.ones(2, dtype=torch.int32)
    tensors = [tensor.to(device) for tensor in (*args.values(), ones)]
    result = function(*tensors, 2, 2, use_kernel=True)
    torch.testing.assert_close(result.cpu()[:, 0], attended_pages())


# Operators that upstream_test.py and grouped_matmul_test.py test.
ELSEWHERE = ["gmm", "quantized_matmul_int8", "ragged_paged_attention"]
RUN = {
    "flash_attention": run_flash_attention,
    "multi_queries_paged_attention": run_multi_queries_paged_attention,
    "paged_attention": run_paged_attention,
}


def test_every_operator_is_known() -> None:
    """A new release's operators need kernels or an entry here."""
    assert sorted([*RUN, *ELSEWHERE]) == OPERATORS


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RUN)
@pytest.mark.parametrize("module", [torch.ops.xla, custom_kernel], ids=["operator", "function"])
def test_right(module: object, name: str, device: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RUN[name](device, getattr(module, name))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("module", [torch.ops.xla, custom_kernel], ids=["operator", "function"])
def test_gradient_of_flash_attention(module: object, device: str) -> None:
    tensors = [tensor.to(device).requires_grad_() for tensor in attention()]
    expected = [tensor.requires_grad_() for tensor in attention()]
    module.flash_attention(*tensors, True).square().sum().backward()
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    masked_attention(*expected, mask, 1.0).square().sum().backward()
    for tensor, other in zip(tensors, expected, strict=True):
        torch.testing.assert_close(tensor.grad.cpu(), other.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_options_of_flash_attention(device: str) -> None:
    q, k, v = (tensor.to(device) for tensor in attention())
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2]] * 2, device=device)
    bias = torch.randn(2, 3, 8, 8, device=device)
    result = custom_kernel.flash_attention(
        q, k, v, False, segments, segments, sm_scale=0.25, ab=bias
    )
    same = (segments[:, None, :, None] == segments[:, None, None, :]).cpu()
    mask = (bias.cpu() * 0.25).masked_fill(~same, -torch.inf).double()
    expected = masked_attention(q.cpu(), k.cpu(), v.cpu(), mask, 0.25)
    torch.testing.assert_close(result.cpu(), expected)
    with pytest.raises(ValueError, match="both q_segment_ids and kv_segment_ids"):
        custom_kernel.flash_attention(q, k, v, False, segments)


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_flash_attention(device: str) -> None:
    tensors = attention()
    compiled = torch.compile(
        torch.ops.xla.flash_attention, backend="openxla" if device == "xla" else "aot_eager"
    )
    with torch.no_grad():
        result = compiled(*(tensor.to(device) for tensor in tensors), True).cpu()
    expected = masked_attention(*tensors, torch.ones(8, 8, dtype=torch.bool).tril(), 1.0)
    torch.testing.assert_close(result, expected)
