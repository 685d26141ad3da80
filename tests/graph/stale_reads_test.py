"""Captured steps never use old values of Python iterators, attributes and containers."""

import collections
import functools
import itertools
import operator
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from testing.stale import (
    Plain,
    Property,
    Scenario,
    Scenarios,
    Slotted,
    assigns,
    check,
    module,
    nothing,
)
from torch import Tensor

Make = Callable[[], Any]
MakeStep = Callable[[Any], Callable[[Tensor], Any]]
SCENARIOS = Scenarios()


def thirds() -> Iterator[int]:
    for i in range(100):
        yield i // 3


# Random generators and iterators, and steps that draw from them.
DRAWN: dict[str, tuple[Make, MakeStep]] = {
    "torch generator": (
        lambda: torch.Generator().manual_seed(1),
        lambda source: lambda x: x * torch.rand(1, generator=source).to("xla"),
    ),
    "numpy generator": (lambda: np.random.default_rng(1), lambda s: lambda x: x * s.random()),
    "numpy state": (lambda: np.random.RandomState(1), lambda s: lambda x: x * float(s.rand())),
    "python generator": (lambda: random.Random(1), lambda s: lambda x: x * s.random()),
    "attribute that is a generator": (
        lambda: types.SimpleNamespace(generator=np.random.default_rng(1)),
        lambda holder: lambda x: x * holder.generator.random(),
    ),
    "number that is drawn in a library": (
        lambda: {"a": [np.random.default_rng(1)]},
        lambda generators: lambda x: x * next(iter(generators.values()))[0].normal(),
    ),
    "numbers of a loader": (
        lambda: iter(torch.utils.data.DataLoader(torch.arange(100.0))),
        lambda loader: lambda x: x * next(loader).to("xla"),
    ),
    "iterator of pairs": (
        lambda: enumerate([5, 5, 5, 7, 7, 7, 7, 7, 7]),
        lambda pairs: lambda x: x * next(pairs)[1],
    ),
    "unnamed random numbers": (lambda: None, lambda _: lambda x: x * random.random()),
    "iterator of a list": (lambda: iter(range(100)), lambda s: lambda x: x * next(s)),
    "iterator that repeats": (lambda: itertools.cycle([2, 2, 3]), lambda s: lambda x: x * next(s)),
    "count": (itertools.count, lambda s: lambda x: x * next(s)),
    "generator": (thirds, lambda s: lambda x: x * next(s)),
    "generator expression": (lambda: (i * i for i in range(100)), lambda s: lambda x: x * next(s)),
}
for _name, (_make, _step) in DRAWN.items():
    SCENARIOS[_name] = (lambda make=_make, step=_step: (step(make()), nothing)), "error"


@SCENARIOS.add("right")
def torch_generator_seeded_inside() -> tuple:
    def step(x: Tensor) -> Tensor:
        return x * torch.rand(1, generator=torch.Generator().manual_seed(1)).to("xla")

    return step, nothing


settings: Any = None


def as_global(value: Any) -> Any:
    """Makes a value the global `settings`."""
    global settings
    settings = value
    return value


# Objects with an attribute that changes, the attribute's name, and steps that read it.
ASSIGNED: dict[str, tuple[Make, str, MakeStep]] = {
    "attribute of a module": (
        lambda: as_global(module("config", SCALE=1.0)),
        "SCALE",
        lambda _: lambda x: x * settings.SCALE,
    ),
    "attribute of a module in a closure": (
        lambda: module("config", SCALE=1.0),
        "SCALE",
        lambda config: lambda x: x * config.SCALE,
    ),
    "attribute of a module in a package": (
        lambda: as_global(module("config", sub=module("config.sub", SCALE=1.0))).sub,
        "SCALE",
        lambda _: lambda x: x * settings.sub.SCALE,
    ),
    "class in a module": (
        lambda: as_global(module("config", Inner=type("Inner", (), {"scale": 1.0}))).Inner,
        "scale",
        lambda _: lambda x: x * settings.Inner.scale,
    ),
    "attribute of a class": (
        lambda: type("Settings", (), {"scale": 1.0}),
        "scale",
        lambda owner: lambda x: x * owner.scale,
    ),
    "attribute of a base class": (
        lambda: type("Settings", (), {"scale": 1.0}),
        "scale",
        lambda base: (lambda own: lambda x: x * own.scale)(type("Own", (base,), {})()),
    ),
    "value of a property": (
        lambda: Property(1.0),
        "_value",
        lambda holder: lambda x: x * holder.value,
    ),
    "value in slots": (lambda: Slotted(1.0), "value", lambda holder: lambda x: x * holder.value),
    "value of a namespace": (
        lambda: types.SimpleNamespace(scale=1.0),
        "scale",
        lambda inner: (lambda h: lambda x: x * h.inner.scale)(types.SimpleNamespace(inner=inner)),
    ),
    "argument that is an object": (
        lambda: Plain(1.0),
        "value",
        lambda holder: functools.partial(lambda h, x: x * h.value, holder),
    ),
}


def assigned(make: Make, name: str, make_step: MakeStep) -> Scenario:
    def scenario() -> tuple:
        owner = make()
        return make_step(owner), assigns(owner, name)

    return scenario


for _name, _case in ASSIGNED.items():
    SCENARIOS[_name] = assigned(*_case), "again"


def with_scale() -> Plain:
    holder = Plain(0)
    holder.scale = 1.0
    return holder


NAME = "scale"
for _name, _read in {
    "getattr": lambda o: getattr(o, "scale"),  # noqa: B009
    "getattr with a default": lambda o: getattr(o, "scale", 7.0),
    "getattr by a global name": lambda o: getattr(o, NAME),
    "vars": lambda o: vars(o)["scale"],
    "__dict__": lambda o: o.__dict__["scale"],
    "attrgetter": lambda o: operator.attrgetter("scale")(o),
    "getattr in a loop": lambda o: sum(getattr(o, name) for name in ("scale", "value")),
    "__getattribute__": lambda o: o.__getattribute__("scale"),
}.items():
    _step = lambda holder, read=_read: lambda x: x * read(holder)  # noqa: E731
    SCENARIOS[f"attribute by {_name}"] = assigned(with_scale, "scale", _step), "again"


@SCENARIOS.add("again")
def list_in_a_module() -> tuple:
    scales = as_global(module("config", SCALES=[1.0])).SCALES

    def change(call: int) -> None:
        scales[0] = float(call // 2)

    return lambda x: x * settings.SCALES[0], change


@SCENARIOS.add("again")
def function_of_a_module() -> tuple:
    config = as_global(module("config", scale=lambda x: x))

    def change(call: int) -> None:
        if call == 5:
            config.scale = lambda x: x * 3

    return lambda x: settings.scale(x), change


@SCENARIOS.add("error")
def attribute_by_a_computed_name() -> tuple:
    holder = Plain(1.0)

    def change(call: int) -> None:
        holder.value = float(call)

    return lambda x: x * getattr(holder, "val" + "ue"[: len("ue")]), change


@SCENARIOS.add("error")
def attribute_that_setattr_counts() -> tuple:
    holder = Plain(0)

    def step(x: Tensor) -> Tensor:
        setattr(holder, "value", getattr(holder, "value") + 1)  # noqa: B009, B010
        return x * 2

    return step, nothing


@SCENARIOS.add("error")
def tensor_that_setattr_keeps() -> tuple:
    config = module("config")

    def step(x: Tensor) -> Tensor:
        y = x * 2
        setattr(config, "".join(["la", "st"]), y)
        return y + 1

    return step, nothing


@SCENARIOS.add("error")
def tensor_that_sys_modules_keeps() -> tuple:
    sys.modules["a_module_of_this_test"] = module("a_module_of_this_test")

    def step(x: Tensor) -> Tensor:
        vars(sys.modules["a_module_of_" + "this_test"])["last"] = x * 3
        return x + 1

    return step, nothing


@SCENARIOS.add("error")
def tensor_that_a_closure_keeps() -> tuple:
    keep = [].append
    return lambda x: (keep(x * 3), x + 1)[1], nothing


def in_order(factors: dict[str, float]) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        for name, factor in factors.items():
            x = x + factor if name == "add" else x * factor
        return x

    return step


@SCENARIOS.add("again")
def order_of_a_dictionary() -> tuple:
    factors = {"add": 1.0, "multiply": 3.0}

    def change(call: int) -> None:
        if call in (3, 5, 6):
            name = "multiply" if call == 5 else "add"
            factors[name] = factors.pop(name)

    return in_order(factors), change


@SCENARIOS.add("again")
def order_of_an_ordered_dictionary() -> tuple:
    factors = collections.OrderedDict(add=1.0, multiply=3.0)

    def change(call: int) -> None:
        if call in (3, 6):
            factors.move_to_end("add")

    return in_order(factors), change


@SCENARIOS.add("again")
def members_of_a_set() -> tuple:
    one, two = Plain(1.0), Plain(2.0)
    members = {one}

    def change(call: int) -> None:
        if call == 3:
            members.add(two)
        if call == 5:
            two.value = 7.0

    return lambda x: x * sum(member.value for member in members), change


@SCENARIOS.add("again")
def numbers_in_a_set() -> tuple:
    members = {1.0}
    return lambda x: x * sum(members), lambda call: members.add(float(call // 2))


@SCENARIOS.add("again")
def items_of_a_deque() -> tuple:
    items = collections.deque([1.0, 2.0], maxlen=2)

    def change(call: int) -> None:
        if call in (3, 5):
            items.append(float(call))

    return lambda x: x * items[0], change


@SCENARIOS.add("again")
def default_of_a_function() -> tuple:
    def scaled(x: Tensor, scale: float = 1.0) -> Tensor:
        return x * scale

    def change(call: int) -> None:
        scaled.__defaults__ = (float(call // 2),)

    return lambda x: scaled(x), change


@SCENARIOS.add("again")
def code_of_a_function() -> tuple:
    def scaled(x: Tensor) -> Tensor:
        return x * 2

    def change(call: int) -> None:
        if call == 5:
            scaled.__code__ = (lambda x: x * 3).__code__

    return lambda x: scaled(x), change


@SCENARIOS.add("again")
def tensor_of_the_host() -> tuple:
    table = torch.ones(1)
    return lambda x: x * table.to("xla"), lambda call: table.add_(1) if call in (3, 5) else None


@SCENARIOS.add("error")
def cache_by_functools() -> tuple:
    scale = [1.0]

    @functools.lru_cache(maxsize=1)
    def cached() -> float:
        return scale[0]

    def change(call: int) -> None:
        scale[0] = float(call)
        cached.cache_clear()

    return lambda x: x * cached(), change


@SCENARIOS.add("right")
def tensor_in_a_cache() -> tuple:
    @functools.lru_cache
    def table(size: int) -> Tensor:
        return torch.arange(size, device="xla") + 3.0

    return lambda x: x * table(1), nothing


@pytest.mark.parametrize("name", SCENARIOS)
def test_never_stale(name: str) -> None:
    check(*SCENARIOS[name])
