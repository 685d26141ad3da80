"""Captured steps that return objects return those of the call."""

import collections
import dataclasses
import functools
import operator
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from testing.stale import Plain, Property, Scenarios, Slotted, check, device, nothing
from torch import Tensor

from torch_xla_ext import CaptureError, capture

SCENARIOS = Scenarios()


@dataclasses.dataclass
class Out:
    value: Tensor
    note: Any = "same"


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenOut:
    value: Tensor
    note: Any = None


@dataclasses.dataclass
class MappingOut(collections.OrderedDict):
    value: Tensor = None

    def __post_init__(self) -> None:
        self["value"] = self.value


class Point(NamedTuple):
    x: Tensor
    y: Any = 0


class DerivedPoint(Point):
    pass


class Ordered(collections.OrderedDict):
    pass


class Mapping(dict):
    pass


class Listing(list):
    pass


class WithState(Plain):
    def __getstate__(self) -> tuple:
        return ("state", self.value)

    def __setstate__(self, state: tuple) -> None:
        self.value = state[1]


STATE = device(5)
RESULTS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "dataclass": (lambda x: Out(x * 2), "right"),
    "frozen dataclass with slots": (lambda x: FrozenOut(x * 2), "right"),
    "dataclass in a dataclass": (lambda x: Out(Out(x * 2), [x]), "right"),
    "dataclass in a list": (lambda x: [Out(x * 2), (x, Out(x + 1))], "right"),
    "dataclass of an argument": (lambda x: Out(x), "right"),
    "dataclass of a view": (lambda x: Out(x.view(1, 1)), "right"),
    "dataclass of state": (lambda x: Out(STATE, x * 2), "right"),
    "dataclass of one tensor twice": (lambda x: (lambda y: Out(y, y))(x * 2), "right"),
    "dataclass that is a mapping": (lambda x: MappingOut(x * 2), "right"),
    "namedtuple": (lambda x: Point(x * 2), "right"),
    "derived namedtuple": (lambda x: DerivedPoint(x * 2, x), "right"),
    "SimpleNamespace": (lambda x: types.SimpleNamespace(a=x * 2, b={"c": x}), "right"),
    "OrderedDict": (lambda x: collections.OrderedDict(a=x * 2), "right"),
    "derived OrderedDict": (lambda x: Ordered(a=x * 2, b=1), "right"),
    "derived dict": (lambda x: Mapping(a=x * 2), "right"),
    "defaultdict": (lambda x: collections.defaultdict(list, a=[x * 2]), "right"),
    "Counter": (lambda x: collections.Counter({"a": 1}), "right"),
    "UserDict": (lambda x: collections.UserDict(a=x * 2), "right"),
    "ChainMap": (lambda x: dict(collections.ChainMap({"a": x * 2}, {"b": x})), "right"),
    "derived list": (lambda x: Listing([x * 2]), "right"),
    "deque": (lambda x: collections.deque([x * 2]), "right"),
    "set": (lambda x: {x * 2}, "right"),
    "frozenset": (lambda x: frozenset([x * 2]), "right"),
    "object": (lambda x: Plain(x * 2), "right"),
    "object with slots": (lambda x: Slotted(x * 2), "right"),
    "object with a state of its own": (lambda x: WithState(x * 2), "right"),
    "object with a property": (lambda x: Property(x * 2), "right"),
    "nested objects": (lambda x: Plain({"a": [Slotted(x * 2)]}), "right"),
    "bound method": (lambda x: Plain(x * 2).get, "right"),
    "partial": (lambda x: functools.partial(operator.mul, x, 2), "right"),
    "list iterator": (lambda x: iter([x * 2]), "right"),
    "zip": (lambda x: zip([x * 2], [1], strict=True), "right"),
    "array of numpy": (lambda x: (x, np.ones(2)), "right"),
    "array of objects": (lambda x: np.frompyfunc(lambda i: x * i, 1, 1)(np.arange(3)), "right"),
    "closure": (lambda x: (lambda y: lambda: y)(x * 2), "error"),
    "default of a function": (lambda x: lambda y=x * 2: y, "error"),
    "generator": (lambda x: (y * 2 for y in [x]), "error"),
    "generator without tensors": (lambda x: (x, (y for y in range(3))), "error"),
    "mapping proxy": (lambda x: types.MappingProxyType({"a": x * 2}), "error"),
    "tensors as keys": (lambda x: {x * 2: 1}, "error"),
}
for _name, (_function, _outcome) in RESULTS.items():
    SCENARIOS[f"result: {_name}"] = (lambda f=_function: (f, nothing)), _outcome


@pytest.mark.parametrize("name", SCENARIOS)
def test_never_stale(name: str) -> None:
    check(*SCENARIOS[name])


def test_object_that_refers_to_itself() -> None:
    def step(x: Tensor) -> Plain:
        result = Plain(x * 2)
        result.value = [result.value, result]
        return result

    with pytest.raises(CaptureError, match=r"an object of Plain, holds .* refers to itself"):
        capture(step)(device(1))
