"""Scenarios in which a captured step could return an old value.

Each scenario runs twice, with the function itself and captured. Both must return the same in each
call, but the captured one may end with a CaptureError.
"""

import collections
import functools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch_xla
from torch import Tensor

from torch_xla_ext import CaptureError, capture

Change = Callable[[int], None]
CALLS = 9


class Plain:
    def __init__(self, value: object) -> None:
        self.value = value

    def get(self) -> object:
        return self.value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Property:
    def __init__(self, value: object) -> None:
        self._value = value

    @property
    def value(self) -> object:
        return self._value


def module(name: str, **values: object) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(values)
    return made


def device(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).to("xla")


def nothing(_call: int) -> None:
    pass


def assigns(owner: object, name: str) -> Change:
    """Assigns another value to an attribute in every second call."""
    return lambda call: setattr(owner, name, float(call // 2))


def read(value: object) -> object:
    """Converts a result to values that can be compared."""
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return type(value).__name__, [(key, read(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(read, value))
    if isinstance(value, functools.partial):
        return read(value())
    if isinstance(value, (list, tuple, collections.deque)):
        return type(value).__name__, list(map(read, value))
    if isinstance(value, types.MethodType):
        return read(value())
    if isinstance(value, Iterator):
        return list(map(read, value))
    if hasattr(value, "__dict__"):
        return type(value).__name__, read(vars(value))
    slots = getattr(type(value), "__slots__", ())
    return type(value).__name__, [read(getattr(value, name)) for name in slots] or value


Scenario = Callable[[], tuple[Callable[[Tensor], Any], Change]]


class Scenarios(dict[str, tuple[Scenario, str]]):
    """Scenarios with their outcomes: the step is "right", captured "again", or raises an
    "error"."""

    def add(self, outcome: str) -> Callable[[Scenario], Scenario]:
        def register(function: Scenario) -> Scenario:
            self[function.__name__] = function, outcome
            return function

        return register


def run(make: Scenario, wrap: Callable[[Any], Any]) -> tuple[list[Any], Any, str | None]:
    step, change = make()
    step = wrap(step)
    results = []
    for call in range(CALLS):
        change(call)
        try:
            results.append(read(step(device(call + 1))))
        except CaptureError as error:
            return results, step, str(error)
        torch_xla.sync()
    change(-1)
    return results, step, None


def check(make: Scenario, outcome: str) -> None:
    """Runs the function itself and the captured one, and compares."""
    seed()
    expected, _, error = run(make, lambda step: step)
    assert error is None
    seed()
    results, step, error = run(make, capture)
    assert results == expected[: len(results)]
    if outcome == "error":
        assert error is not None
        assert len(results) < CALLS
    else:
        assert error is None
        assert step.num_captures >= (2 if outcome == "again" else 1)


def seed() -> None:
    random.seed(1)
    np.random.seed(1)
