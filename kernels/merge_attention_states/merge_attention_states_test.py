"""merge_attention_states against attention to all tokens at once."""

import doctest
import importlib

import pytest
import torch
from testing.paged import (
    Pages,
    assert_close,
    assert_lse_close,
    attention_and_lse,
    int32,
    relative_error,
)

from torch_xla_ext import debug
from torch_xla_ext.ops import merge_attention_states, paged_attention, ragged_paged_attention

NOTHING = float("-inf")


def states(*shape: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [
        torch.randn(*shape).to(dtype) if i % 2 == 0 else 9 * torch.randn(shape[:-1])
        for i in range(4)
    ]


def expected(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, lse_a, b, lse_b = (tensor.double() for tensor in tensors)
    weights = torch.stack([lse_a, lse_b]).softmax(0).nan_to_num(0).unsqueeze(-1)
    return weights[0] * a + weights[1] * b, torch.logaddexp(lse_a, lse_b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(5, 8, 64), (7, 128), (0, 4, 64), (64,)], ids=str)
def test_two_states(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensors = states(*shape, dtype=dtype)
    if len(shape) == 3:
        tensors[1][:2], tensors[3][1:3] = NOTHING, NOTHING
        tensors[0][:2], tensors[2][1:3] = 0, 0
    merged, lse = merge_attention_states(*(tensor.to(device) for tensor in tensors))
    output, output_lse = expected(*tensors)
    assert merged.dtype == dtype
    assert relative_error(merged, output) <= 1e-2
    torch.testing.assert_close(lse.cpu().double(), output_lse, rtol=1e-5, atol=1e-5)


def test_cascade_attention(device: torch.device) -> None:
    """A prefix that two sequences share, and their own tokens, as one context."""
    torch.manual_seed(3)
    pages = Pages.random([90, 71], 2, 64, 16, torch.bfloat16, shared_pages=3)
    query = torch.randn(2, 8, 64).bfloat16()
    sinks = torch.linspace(-1, 3, 8)
    caches = pages.keys.to(device), pages.values.to(device)
    options = {"scale": 0.125, "return_lse": True}

    def move(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [tensor.to(device) for tensor in tensors]

    # The prefix of 48 tokens is one sequence, whose rows are the queries of both.
    q, lengths, table, rows, count = move(
        query, int32([48]), pages.tables[:1, :3].contiguous(), int32([0, 2]), int32([1])
    )
    combined = pages.combined.to(device)
    prefix = ragged_paged_attention(
        q, combined, lengths, table, rows, count, 0.125, causal=False, return_lse=True
    )
    own_tables, own_lengths, own_sinks = move(
        pages.tables[:, 3:].contiguous(), int32([42, 23]), sinks
    )
    own = paged_attention(q, *caches, own_tables, own_lengths, **options, sinks=own_sinks)
    merged, lse = merge_attention_states(*prefix, *own)
    results = [
        attention_and_lse(query[s : s + 1], *pages.tokens(s), scale=0.125, sinks=sinks)
        for s in range(2)
    ]
    assert_close(merged, torch.cat([attended for attended, _ in results]))
    assert_lse_close(lse, torch.cat([expected_lse for _, expected_lse in results]))


def test_it_is_one_program_without_calls(device: torch.device) -> None:
    tensors = [tensor.to(device) for tensor in states(3, 2, 64)]
    merged, _ = merge_attention_states(*tensors)
    if device.type == "xla":
        assert len(debug.custom_calls(merged)) == 0


@pytest.mark.parametrize("backend", ["aot_eager", "openxla"])
def test_compiled_result_is_exact(device: torch.device, backend: str) -> None:
    tensors = states(3, 2, 64)
    compiled = torch.compile(merge_attention_states, backend=backend, fullgraph=True)
    merged, lse = compiled(*(tensor.to(device) for tensor in tensors))
    output, output_lse = expected(*tensors)
    assert relative_error(merged, output) <= 1e-2
    torch.testing.assert_close(lse.cpu().double(), output_lse, rtol=1e-5, atol=1e-5)


def test_gradients_by_finite_differences() -> None:
    tensors = [tensor.double().requires_grad_() for tensor in states(3, 2, 4, dtype=torch.float32)]

    def merge(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return merge_attention_states(*(x.float() for x in inputs))

    assert torch.autograd.gradcheck(merge, tensors, eps=1e-2, atol=1e-2, rtol=1e-2)


WRONG = [
    (0, torch.randn(3, 2, 64).double(), TypeError, "output_a: expected dtype torch.float16, "),
    (1, torch.randn(3, 3), ValueError, r"lse_a: expected shape \[3, 2\] but got \[3, 3\]"),
    (1, torch.randn(3, 2).half(), TypeError, "lse_a: expected dtype torch.float32 but got"),
    (2, torch.randn(3, 2, 64), TypeError, "output_b: expected dtype torch.bfloat16 but got"),
    (2, torch.randn(3, 2, 32).bfloat16(), ValueError, r"output_b: expected shape \[3, 2, 64\]"),
    (3, torch.randn(3, 2, device="meta"), ValueError, "lse_b: expected device cpu but got meta"),
    (3, torch.randn(2), ValueError, r"lse_b: expected shape \[3, 2\] but got \[2\]"),
]


@pytest.mark.parametrize(("index", "tensor", "error", "text"), WRONG)
def test_wrong_calls(index: int, tensor: torch.Tensor, error: type[Exception], text: str) -> None:
    tensors = states(3, 2, 64)
    tensors[index] = tensor
    with pytest.raises(error, match=f"xla_gpu::merge_attention_states: {text}"):
        merge_attention_states(*tensors)


def test_documented_example() -> None:
    module = importlib.import_module("torch_xla_ext.ops.merge_attention_states")
    assert doctest.testmod(module).failed == 0
