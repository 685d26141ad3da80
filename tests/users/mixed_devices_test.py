"""An operator gets a CPU tensor besides XLA tensors: one sentence says which, and the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as functional
import torch_xla  # noqa: F401

X, Y = torch.ones(2, 3, device="xla"), torch.ones(2, 3)
INDEX = torch.tensor([[0, 0, 1]])
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "matmul": (lambda: X @ Y.T, r"torch\.FloatTensor of shape \[3, 2\], is on cpu"),
    "the first": (lambda: Y @ X.T, r"torch\.FloatTensor of shape \[2, 3\], is on cpu"),
    "cat": (lambda: torch.cat([X, Y]), r"torch\.FloatTensor of shape \[2, 3\], is on cpu"),
    "linear": (lambda: functional.linear(X, Y), r"torch\.FloatTensor of shape \[3, 2\], is on cpu"),
    "gather": (lambda: X.gather(0, INDEX), r"torch\.LongTensor of shape \[1, 3\], is on cpu"),
    "embedding": (
        lambda: functional.embedding(INDEX, X),
        r"torch\.LongTensor of shape \[1, 3\], is on cpu",
    ),
}


@pytest.mark.parametrize(("call", "text"), CALLS.values(), ids=CALLS)
def test_one_sentence(call: Callable[[], object], text: str) -> None:
    expected = f"^expected all tensors to be on an XLA device but one, {text}: move it with .to"
    with pytest.raises(RuntimeError, match=expected) as error:
        call()
    assert "\n" not in str(error.value)


def test_the_sums_go_on() -> None:
    with pytest.raises(RuntimeError, match="is on cpu"):
        torch.mm(X, Y.T)
    assert torch.equal(torch.mm(X, Y.T.to("xla")).cpu(), torch.mm(Y, Y.T))
