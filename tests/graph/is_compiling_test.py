"""A step that reads a value is traced again, with torch.compiler.is_compiling() true.

Libraries ask for it: transformers' masking code, for example, reads a mask unless it is compiled.
"""

import array
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from torch_xla_ext import CaptureError, capture


def attend(x: Tensor, mask: Tensor | None) -> Tensor:
    """Attention that drops a mask whose elements are all true, as libraries do."""
    if mask is not None and not torch.compiler.is_compiling() and mask.all():
        mask = None
    return scaled_dot_product_attention(x, x, x, mask, is_causal=mask is None)


def test_value_that_only_uncompiled_code_reads() -> None:
    x = torch.randn(1, 4, 8)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    step = capture(attend, verify=True)
    for mask in (causal, causal.flip(0).flip(1), causal):
        got = step(x.to("xla"), mask.to("xla"))
        torch.testing.assert_close(got.cpu(), attend(x, mask))
    assert step.num_captures == 1


def test_is_compiling_is_false_without_a_read() -> None:
    asked = []

    def function(x: Tensor) -> Tensor:
        asked.append(torch.compiler.is_compiling())
        return x + 1

    capture(function, check_python=False)(torch.zeros(1).to("xla"))
    assert asked == [False]


def test_verification_asks_as_the_capture_did() -> None:
    answers = array.array("b")  # capture does not compare arrays

    def function(x: Tensor) -> Tensor:
        answers.append(torch.compiler.is_compiling())
        return x if torch.compiler.is_compiling() else x * x.sum().item()

    step = capture(function, verify=True)
    for _ in range(3):
        assert step(torch.ones(2).to("xla")).tolist() == [1, 1]
    assert answers.tolist() == [False, True, True, True]
    assert step.num_captures == 1


def test_only_this_thread_and_only_until_the_end_of_the_trace() -> None:
    others = []

    def ask() -> None:
        others.append(torch.compiler.is_compiling())

    def function(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return x * x.sum().item()
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        return x * 2

    step = capture(function, check_python=False)
    with pytest.raises(CaptureError, match="reads the value"):
        step(torch.ones(2).to("xla"))  # without check_python nobody knows what the first trace did
    upstream = torch.compiler.is_compiling
    step = capture(function)
    assert step(torch.ones(2).to("xla")).tolist() == [2, 2]
    assert others == [False]
    assert torch.compiler.is_compiling is upstream
    assert not upstream()


class Training:
    """One parameter and its optimizer, with a check that reads a value at a given place."""

    def __init__(self, device: str, checked: str) -> None:
        torch.manual_seed(0)
        self.parameter = torch.nn.Parameter(torch.randn(4).to(device))
        self.optimizer = torch.optim.Adam([self.parameter], lr=0.1, capturable=device == "xla")
        self.checked = checked

    def check(self, place: str, value: Tensor) -> None:
        if place == self.checked and not torch.compiler.is_compiling():
            assert not value.isnan()

    def step(self, x: Tensor) -> Tensor:
        loss = ((self.parameter - x) ** 2).sum()
        self.check("before", loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.check("after", loss)
        return loss.detach()


def _losses(training: Training, step: Callable[[Tensor], Tensor], device: str) -> list[float]:
    return [step(torch.full((4,), float(i)).to(device)).item() for i in range(5)]


def test_training_with_a_check_in_the_forward_pass() -> None:
    want, got = Training("cpu", "before"), Training("xla", "before")
    expected = _losses(want, want.step, "cpu")
    assert _losses(got, capture(got.step), "xla") == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(got.parameter.detach().cpu(), want.parameter.detach())


def test_step_that_made_an_optimizers_state_is_not_traced_a_second_time() -> None:
    """The second trace would update the state of the first."""
    training = Training("xla", "after")
    with pytest.raises(CaptureError, match="reads the value"):
        capture(training.step)(torch.zeros(4).to("xla"))
