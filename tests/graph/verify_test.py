"""capture traces calls 2, 4, 8, … again, and names an operation or constant that has changed."""

import array
import cProfile
import logging
import pstats
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from testing.stale import device
from torch import Tensor

from torch_xla_ext import CaptureError, capture


class Counted:
    """A function that counts its Python runs in a place that capture does not compare."""

    def __init__(self) -> None:
        self.runs = array.array("i", [0])

    def __call__(self, x: Tensor) -> Tensor:
        self.runs[0] += 1
        return x * 2


@pytest.mark.parametrize(
    ("options", "traced"),
    [
        ({}, [1, 2, 4, 8, 16, 32]),
        ({"verify": 8}, [1, 2, 4, 8]),
        ({"verify": 7}, [1, 2, 4]),
        ({"verify": 0}, [1]),
        ({"verify": False}, [1]),
        ({"verify": True}, list(range(1, 41))),
        ({"check_python": False}, [1]),
        ({"check_python": False, "verify": 4}, [1, 2, 4]),
    ],
)
def test_which_calls_are_traced(options: dict[str, Any], traced: list[int]) -> None:
    function = Counted()
    step, runs = capture(function, **options), []
    for call in range(1, 41):
        before = function.runs[0]
        assert step(device(call)).tolist() == [2 * call]
        if function.runs[0] > before:
            runs.append(call)
    assert runs == traced
    assert step.num_captures == 1


def test_none_after_the_last_one() -> None:
    function = Counted()
    step, x = capture(function), device(1)
    for _ in range(2100):
        step(x)
    assert function.runs[0] == 11


def test_a_trace_replaces_a_call() -> None:
    """State is written once, random numbers are drawn once, and gradients are those of one call."""
    total, weight = device(0), torch.nn.Parameter(device(1))

    def step(x: Tensor) -> Tensor:
        total.add_(x)
        weight.grad = None
        (weight * total).sum().backward()
        return torch.rand(1, device="xla")

    captured, drawn = capture(step, verify=True), []
    for call in range(1, 7):
        drawn.append(captured(device(1)).item())
        assert total.tolist() == [call]
        assert weight.grad.tolist() == [call]
    assert len(set(drawn)) == 6


def first_operation(x: Tensor, run: int) -> Tensor:
    return x + 1 if run == 1 else x - 1


def scalar(x: Tensor, run: int) -> Tensor:
    return x * (0.5 * run)


def shape(x: Tensor, run: int) -> Tensor:
    return x + torch.zeros(run, device="xla").sum()


def additional(x: Tensor, run: int) -> Tensor:
    return x.relu() if run > 1 else x + 0


def constant(x: Tensor, run: int) -> Tensor:
    return x * torch.from_numpy(np.full(1, run, np.float32)).to("xla")


class Times(torch.autograd.Function):
    factor = array.array("f", [0])

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + 0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * Times.factor[0]


weight = torch.nn.Parameter(device(1))
other = device(7)


def backward(x: Tensor, run: int) -> Tensor:
    Times.factor[0] = run
    weight.grad = None
    Times.apply(weight * x).sum().backward()
    return weight.grad.clone()


def source(x: Tensor, run: int) -> Tensor:
    return x * (other if run == 1 else weight.detach())


def result(x: Tensor, run: int) -> Any:
    return x * 2, run


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (first_operation, r"add\(float32 \[1\], 1\) in verify_test.py, line \d+ became sub\("),
        (scalar, r"mul\(float32 \[1\], 0.5\) in verify_test.py, line \d+ became .* 1.0\)"),
        (shape, r"zeros\(1, .*line \d+ became zeros\(2, "),
        (additional, r"add\(float32 \[1\], 0\) in .* became relu\(float32 \[1\]\)"),
        (constant, r"a constant float32 \[1\], made in verify_test.py, line \d+, has other"),
        (backward, r"mul\(float32 \[1\], 1.0\) in verify_test.py, line \d+ became mul\("),
        (source, r"it reads the function\.function\.weight instead of .*other"),
        (result, r"the result\[1\] was 1 and is 2"),
    ],
)
def test_differences_between_programs(
    function: Callable[..., Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs = array.array("i", [0])
    weight.grad = torch.zeros_like(weight)

    def step(x: Tensor) -> Any:
        runs[0] += 1
        return function(x, runs[0])

    captured = capture(step)
    with caplog.at_level(logging.WARNING, "torch_xla_ext.capture"):
        captured(device(1))
        captured(device(1))
    (record,) = caplog.records
    assert "captured again, because" in record.getMessage()
    assert re.search(text, record.getMessage()), record.getMessage()


def test_text_after_replays() -> None:
    factor = array.array("f", [1])
    step = capture(lambda x: x * factor[0])
    for _ in range(4):
        step(device(1))
    factor[0] = 2
    for _ in range(3):
        step(device(1))
    text = (
        r"mul\(float32 \[1\], 1.0\) in verify_test.py, .* became .*2.0.*Pass what changes.*Calls "
        "after call 4 of this capture replayed the older program"
    )
    with pytest.raises(CaptureError, match=text):
        step(device(1))
    assert step(device(1)).tolist() == [2]  # a new capture
    assert step.num_captures == 1


def test_an_error_of_the_function_is_its_own() -> None:
    fails = array.array("i", [0])

    def step(x: Tensor) -> Tensor:
        total.add_(x)
        if fails[0]:
            raise KeyError("mine")
        return x * 2

    total = device(0)
    captured = capture(step, verify=True)
    captured(device(1))
    fails[0] = 1
    with pytest.raises(KeyError, match="mine"):
        captured(device(1))
    fails[0] = 0
    assert total.tolist() == [1]
    assert captured(device(1)).tolist() == [2]
    assert total.tolist() == [2]


# Changes that neither the comparison at each call nor a trace sees before the next trace: the list
# in docs/performance.md, "The contract".


def big_host_memory() -> tuple:
    table = torch.ones(1 << 15)
    return (lambda x: x * table.to("xla")[:1]), lambda: table.data.fill_(3)


def memory_outside_torch() -> tuple:
    memory = array.array("f", [1])
    return (lambda x: x * memory[0]), lambda: memory.__setitem__(0, 3)


def computed_name() -> tuple:
    holder = types.SimpleNamespace(scale=1.0)
    name = ["sc", "ale"]
    return (lambda x: x * getattr(holder, "".join(name))), lambda: setattr(holder, "scale", 3.0)


def library() -> tuple:
    def change() -> None:
        patch = mock.patch.object(torch.nn.functional, "silu", lambda x: x * 3)
        patch.start()
        _patches.append(patch)

    return (lambda x: torch.nn.functional.silu(x)), change


_patches: list[Any] = []


def module_by_name() -> tuple:
    made = types.ModuleType("a_module_of_verify_test")
    made.SCALE = 1.0
    sys.modules[made.__name__] = made

    def change() -> None:
        made.SCALE = 3.0

    return (lambda x: x * sys.modules["a_module_of_verify_test"].SCALE), change


def file_on_disk(folder: Path) -> tuple:
    path = folder / "scale"
    path.write_text("1.0")
    return (lambda x: x * float(path.read_text())), lambda: path.write_text("3.0")


@pytest.mark.parametrize(
    "make",
    [
        *(big_host_memory, memory_outside_torch, computed_name, library, module_by_name),
        file_on_disk,
    ],
)
def test_changes_that_only_the_next_trace_detects(
    make: Callable[..., tuple], tmp_path: Path
) -> None:
    """Stale until the next call that is traced, which raises."""
    step, change = make(tmp_path) if make is file_on_disk else make()
    captured = capture(step)
    x = device(1)
    try:
        for _ in range(4):
            before = captured(x).item()
        change()
        for _ in range(3):
            assert captured(x).item() == before != step(x).item()
        with pytest.raises(CaptureError, match="after call 4 of this capture replayed the older"):
            captured(x)
    finally:
        while _patches:
            _patches.pop().stop()
    assert captured(x).item() == step(x).item()


def test_contract_side_effects() -> None:
    """Side effects happen only in traces."""
    step = capture(lambda x: (sys.stdout.write("written\n"), x * 2)[1])
    with mock.patch.object(sys, "stdout") as stdout:
        for _ in range(9):
            step(device(1))
    assert stdout.write.call_count == 4  # calls 1, 2, 4 and 8


def test_within_a_profile_of_python() -> None:
    @capture
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.arange(3.0, device="xla")
    with cProfile.Profile() as profile:
        for _ in range(3):  # captured, verified and replayed
            assert step(x).tolist() == [0, 2, 4]
        _marked()
    functions = {function for _, _, function in pstats.Stats(profile).stats}
    assert "_marked" in functions  # it goes on after the capture


def _marked() -> None:
    """A function whose name must be in the profile."""
