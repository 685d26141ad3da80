"""Copies of captured steps and of their owners, and steps whose kernels are replaced."""

import copy
import ctypes
import pickle
from typing import Any

import pytest
import torch
import torch_xla
from testing.stale import device
from torch import Tensor, nn

from torch_xla_ext import CaptureError, capture, custom_call, register_custom_call


class Counter:
    def __init__(self) -> None:
        self.total = device(0)

    @capture
    def add(self, x: Tensor) -> Tensor:
        return self.total.add_(x).clone()


class Assigned:
    """An object with a step among its attributes."""

    def __init__(self) -> None:
        self.total = device(0)
        self.add = capture(self.add_once, max_captures=3)

    def add_once(self, x: Tensor) -> Tensor:
        return self.total.add_(x).clone()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(device(2))

    @capture
    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.detach()


@capture(max_captures=2)
def twice(x: Tensor) -> Tensor:
    return x * 2


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("kind", [Counter, Assigned])
@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_copies_of_an_owner_have_their_own_replays(kind: type, copied: Any) -> None:
    one = kind()
    for _ in range(3):
        one.add(device(1))
    other = copied(one)
    assert other.add.num_captures == 0
    assert other.add is not one.add
    for i in range(3):
        assert other.add(device(10)).tolist() == [3 + 10 * (i + 1)]
        assert one.add(device(1)).tolist() == [4 + i]
    assert (one.total.tolist(), other.total.tolist()) == ([6], [33])
    assert other.add._arguments() == one.add._arguments()


def test_shallow_copy_of_an_owner() -> None:
    one = Counter()
    one.add(device(1))
    other = copy.copy(one)
    other.total = device(5)
    assert other.add(device(1)).tolist() == [6]
    assert one.add(device(1)).tolist() == [2]


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])
def test_module(copied: Any) -> None:
    model = Model()
    assert model(device(3)).tolist() == [6]
    other = copied(model)
    with torch.no_grad():
        other.weight.fill_(7)
    for i in range(4):
        assert other(device(i)).tolist() == [7 * i]
        assert model(device(i)).tolist() == [2 * i]
    assert other.forward.num_captures == model.forward.num_captures == 1


def test_captured_module() -> None:
    step = capture(torch.no_grad()(nn.Linear(1, 1).to("xla")))
    expected = step(device(1)).tolist()
    other = copy.deepcopy(step)
    assert other.num_captures == 0
    assert other(device(1)).tolist() == expected


def test_step() -> None:
    twice(device(1))
    assert copy.copy(twice).num_captures == 0
    assert copy.deepcopy(twice).num_captures == 0
    assert copy.deepcopy(twice)(device(3)).tolist() == [6]
    assert through_pickle(twice) is twice  # by its name, like any function of a module


def test_a_method_can_be_replaced() -> None:
    one = Counter()
    one.add(device(1))
    one.add = lambda x: x * 9
    assert one.add(device(1)).tolist() == [9]
    del one.add
    assert one.add(device(1)).tolist() == [2]
    with pytest.raises(AttributeError, match="add"):
        del Counter().add


def numbers() -> Any:
    yield 1


async def later() -> int:
    return 1


class Generating(nn.Module):
    def forward(self, x: Tensor) -> Any:
        yield x


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (numbers, "a generator function"),
        (Generating(), "a generator function"),
        (Generating().forward, "a generator function"),
        (later, "a coroutine function"),
    ],
)
def test_generator_functions(function: Any, kind: str) -> None:
    with pytest.raises(CaptureError, match=f"to completion .*, but .* is {kind}: return a list"):
        capture(function)


_Kernel = ctypes.CFUNCTYPE(
    None,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_char_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
)


def register(factor: float) -> None:
    """A kernel for the CPU that multiplies one number."""

    def run(results: Any, operands: Any, *_: object) -> None:
        source, target = (
            ctypes.cast(p[0], ctypes.POINTER(ctypes.c_float)) for p in (operands, results)
        )
        target[0] = source[0] * factor

    register_custom_call("copies_test.times", _Kernel(run), platform="Host", api="untyped")


@pytest.mark.skipif(torch_xla.runtime.device_type() == "CUDA", reason="the kernel is for the CPU")
@pytest.mark.parametrize("check_python", [True, False])
def test_a_kernel_that_is_registered_again(check_python: bool) -> None:
    def times(x: Tensor) -> Tensor:
        return custom_call("copies_test.times", [x], [((1,), torch.float32)], payload=b"")[0]

    register(2)
    step = capture(times, check_python=check_python)
    assert [step(device(i)).item() for i in range(5)] == [0, 2, 4, 6, 8]
    register(3)
    assert [step(device(i)).item() for i in range(5)] == [0, 3, 6, 9, 12]
    assert step.num_captures == 1
