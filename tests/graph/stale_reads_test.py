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

SCENARIOS = Scenarios()


# Random generators and iterators.


@SCENARIOS.add("error")
def torch_generator() -> tuple:
    generator = torch.Generator().manual_seed(1)
    return lambda x: x * torch.rand(1, generator=generator).to("xla"), nothing


@SCENARIOS.add("right")
def torch_generator_seeded_inside() -> tuple:
    def step(x: Tensor) -> Tensor:
        return x * torch.rand(1, generator=torch.Generator().manual_seed(1)).to("xla")

    return step, nothing


@SCENARIOS.add("error")
def numpy_generator() -> tuple:
    generator = np.random.default_rng(1)
    return lambda x: x * generator.random(), nothing


@SCENARIOS.add("error")
def numpy_random_state() -> tuple:
    generator = np.random.RandomState(1)
    return lambda x: x * float(generator.rand()), nothing


@SCENARIOS.add("error")
def python_generator_of_numbers() -> tuple:
    generator = random.Random(1)
    return lambda x: x * generator.random(), nothing


@SCENARIOS.add("error")
def attribute_that_is_a_generator() -> tuple:
    holder = types.SimpleNamespace(generator=np.random.default_rng(1))
    return lambda x: x * holder.generator.random(), nothing


@SCENARIOS.add("error")
def number_that_is_drawn_in_a_library() -> tuple:
    generators = {"a": [np.random.default_rng(1)]}
    return lambda x: x * next(iter(generators.values()))[0].normal(), nothing


@SCENARIOS.add("error")
def iterator_of_a_list() -> tuple:
    values = iter(range(100))
    return lambda x: x * next(values), nothing


@SCENARIOS.add("error")
def iterator_that_repeats() -> tuple:
    values = itertools.cycle([2, 2, 3])
    return lambda x: x * next(values), nothing


@SCENARIOS.add("error")
def iterator_of_pairs() -> tuple:
    values = enumerate([5, 5, 5, 7, 7, 7, 7, 7, 7])
    return lambda x: x * next(values)[1], nothing


@SCENARIOS.add("error")
def count() -> tuple:
    values = itertools.count()
    return lambda x: x * next(values), nothing


@SCENARIOS.add("error")
def generator_that_is_advanced() -> tuple:
    def numbers() -> Iterator[int]:
        for i in range(100):
            yield i // 3

    values = numbers()
    return lambda x: x * next(values), nothing


@SCENARIOS.add("error")
def generator_expression() -> tuple:
    values = (i * i for i in range(100))
    return lambda x: x * next(values), nothing


@SCENARIOS.add("error")
def numbers_of_a_loader() -> tuple:
    loader = iter(torch.utils.data.DataLoader(torch.arange(100.0)))
    return lambda x: x * next(loader).to("xla"), nothing


@SCENARIOS.add("error")
def unnamed_random_numbers() -> tuple:
    return lambda x: x * random.random(), nothing


# Attributes, modules and containers.


@SCENARIOS.add("again")
def attribute_of_a_module() -> tuple:
    config = module("config", SCALE=1.0)

    global settings
    settings = config
    return lambda x: x * settings.SCALE, assigns(config, "SCALE")


settings: Any = None


@SCENARIOS.add("again")
def attribute_of_a_module_in_a_closure() -> tuple:
    config = module("config", SCALE=1.0)

    return lambda x: x * config.SCALE, assigns(config, "SCALE")


@SCENARIOS.add("again")
def attribute_of_a_module_in_a_package() -> tuple:
    config = module("config", sub=module("config.sub", SCALE=1.0))

    global settings
    settings = config
    return lambda x: x * settings.sub.SCALE, assigns(config.sub, "SCALE")


@SCENARIOS.add("again")
def list_in_a_module() -> tuple:
    config = module("config", SCALES=[1.0])

    def change(call: int) -> None:
        config.SCALES[0] = float(call // 2)

    global settings
    settings = config
    return lambda x: x * settings.SCALES[0], change


@SCENARIOS.add("again")
def function_of_a_module() -> tuple:
    config = module("config", scale=lambda x: x)

    def change(call: int) -> None:
        if call == 5:
            config.scale = lambda x: x * 3

    global settings
    settings = config
    return lambda x: settings.scale(x), change


@SCENARIOS.add("again")
def class_in_a_module() -> tuple:
    class Inner:
        scale = 1.0

    config = module("config", Inner=Inner)

    global settings
    settings = config
    return lambda x: x * settings.Inner.scale, assigns(Inner, "scale")


def by_strings(read_scale: Callable[[Any], float]) -> Scenario:
    def make() -> tuple:
        holder = Plain(0)
        holder.scale = 1.0

        def change(call: int) -> None:
            holder.scale = float(call // 2)

        return lambda x: x * read_scale(holder), change

    return make


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
    SCENARIOS[f"attribute by {_name}"] = by_strings(_read), "again"


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
    kept = []
    keep = kept.append

    def step(x: Tensor) -> Tensor:
        keep(x * 3)
        return x + 1

    return step, nothing


@SCENARIOS.add("again")
def order_of_a_dictionary() -> tuple:
    factors = {"add": 1.0, "multiply": 3.0}

    def step(x: Tensor) -> Tensor:
        for name, factor in factors.items():
            x = x + factor if name == "add" else x * factor
        return x

    def change(call: int) -> None:
        if call in (3, 6):
            factors["add"] = factors.pop("add")
        if call == 5:
            factors["multiply"] = factors.pop("multiply")

    return step, change


@SCENARIOS.add("again")
def order_of_an_ordered_dictionary() -> tuple:
    factors = collections.OrderedDict(add=1.0, multiply=3.0)

    def step(x: Tensor) -> Tensor:
        for name, factor in factors.items():
            x = x + factor if name == "add" else x * factor
        return x

    def change(call: int) -> None:
        if call in (3, 6):
            factors.move_to_end("add")

    return step, change


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

    def change(call: int) -> None:
        members.add(float(call // 2))

    return lambda x: x * sum(members), change


@SCENARIOS.add("again")
def items_of_a_deque() -> tuple:
    items = collections.deque([1.0, 2.0], maxlen=2)

    def change(call: int) -> None:
        if call in (3, 5):
            items.append(float(call))

    return lambda x: x * items[0], change


@SCENARIOS.add("again")
def attribute_of_a_class() -> tuple:
    class Settings:
        scale = 1.0

    return lambda x: x * Settings.scale, assigns(Settings, "scale")


@SCENARIOS.add("again")
def attribute_of_a_base_class() -> tuple:
    class Settings:
        scale = 1.0

    class Own(Settings):
        pass

    own = Own()

    return lambda x: x * own.scale, assigns(Settings, "scale")


@SCENARIOS.add("again")
def value_of_a_property() -> tuple:
    holder = Property(1.0)

    return lambda x: x * holder.value, assigns(holder, "_value")


@SCENARIOS.add("again")
def value_in_slots() -> tuple:
    holder = Slotted(1.0)

    return lambda x: x * holder.value, assigns(holder, "value")


@SCENARIOS.add("again")
def value_of_a_namespace() -> tuple:
    holder = types.SimpleNamespace(inner=types.SimpleNamespace(scale=1.0))

    return lambda x: x * holder.inner.scale, assigns(holder.inner, "scale")


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

    def change(call: int) -> None:
        if call in (3, 5):
            table.add_(1)

    return lambda x: x * table.to("xla"), change


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


@SCENARIOS.add("again")
def argument_that_is_an_object() -> tuple:
    holder = Plain(1.0)

    return functools.partial(lambda h, x: x * h.value, holder), assigns(holder, "value")


@pytest.mark.parametrize("name", SCENARIOS)
def test_never_stale(name: str) -> None:
    check(*SCENARIOS[name])
