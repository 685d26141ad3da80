"""A captured step never returns an old value: it is right, captures again, or raises.

Each scenario runs twice, with the function itself and captured, and both must return the same, call
by call, until the captured one may raise CaptureError.
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import dataclasses
import functools
import itertools
import operator
import os
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
import torch_xla
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from torch_xla_ext import CaptureError, capture

Change = Callable[[int], None]
CALLS = 9


def device(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).to("xla")


def nothing(_call: int) -> None:
    pass


def read(value: Any) -> Any:
    """A result as values that can be compared."""
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
SCENARIOS: dict[str, tuple[Scenario, str]] = {}


def scenario(outcome: str, name: str | None = None) -> Callable[[Scenario], Scenario]:
    """Registers one: its step is right, captured "again", or raises an "error" at some call."""

    def add(function: Scenario) -> Scenario:
        SCENARIOS[name or function.__name__] = function, outcome
        return function

    return add


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


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    random.seed(1)
    np.random.seed(1)


# (a) Results in objects.


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


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class WithState(Plain):
    def __getstate__(self) -> tuple:
        return ("state", self.value)

    def __setstate__(self, state: tuple) -> None:
        self.value = state[1]


class Property:
    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def value(self) -> Any:
        return self._value


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


# (b) Numbers and iterators on the host.


@scenario("error")
def torch_generator() -> tuple:
    generator = torch.Generator().manual_seed(1)
    return lambda x: x * torch.rand(1, generator=generator).to("xla"), nothing


@scenario("right")
def torch_generator_seeded_inside() -> tuple:
    def step(x: Tensor) -> Tensor:
        return x * torch.rand(1, generator=torch.Generator().manual_seed(1)).to("xla")

    return step, nothing


@scenario("error")
def numpy_generator() -> tuple:
    generator = np.random.default_rng(1)
    return lambda x: x * generator.random(), nothing


@scenario("error")
def numpy_random_state() -> tuple:
    generator = np.random.RandomState(1)
    return lambda x: x * float(generator.rand()), nothing


@scenario("error")
def python_generator_of_numbers() -> tuple:
    generator = random.Random(1)
    return lambda x: x * generator.random(), nothing


@scenario("error")
def attribute_that_is_a_generator() -> tuple:
    holder = types.SimpleNamespace(generator=np.random.default_rng(1))
    return lambda x: x * holder.generator.random(), nothing


@scenario("error")
def number_that_is_drawn_in_a_library() -> tuple:
    generators = {"a": [np.random.default_rng(1)]}
    return lambda x: x * next(iter(generators.values()))[0].normal(), nothing


@scenario("error")
def iterator_of_a_list() -> tuple:
    values = iter(range(100))
    return lambda x: x * next(values), nothing


@scenario("error")
def iterator_that_repeats() -> tuple:
    values = itertools.cycle([2, 2, 3])
    return lambda x: x * next(values), nothing


@scenario("error")
def iterator_of_pairs() -> tuple:
    values = enumerate([5, 5, 5, 7, 7, 7, 7, 7, 7])
    return lambda x: x * next(values)[1], nothing


@scenario("error")
def count() -> tuple:
    values = itertools.count()
    return lambda x: x * next(values), nothing


@scenario("error")
def generator_that_is_advanced() -> tuple:
    def numbers() -> Iterator[int]:
        for i in range(100):
            yield i // 3

    values = numbers()
    return lambda x: x * next(values), nothing


@scenario("error")
def generator_expression() -> tuple:
    values = (i * i for i in range(100))
    return lambda x: x * next(values), nothing


@scenario("error")
def numbers_of_a_loader() -> tuple:
    loader = iter(torch.utils.data.DataLoader(torch.arange(100.0)))
    return lambda x: x * next(loader).to("xla"), nothing


@scenario("error")
def unnamed_random_numbers() -> tuple:
    return lambda x: x * random.random(), nothing


# (c) Attributes, modules, dictionaries.


def module(name: str, **values: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(values)
    return made


@scenario("again")
def attribute_of_a_module() -> tuple:
    config = module("config", SCALE=1.0)

    def change(call: int) -> None:
        config.SCALE = float(call // 2)

    global settings
    settings = config
    return lambda x: x * settings.SCALE, change


settings: Any = None


@scenario("again")
def attribute_of_a_module_in_a_closure() -> tuple:
    config = module("config", SCALE=1.0)

    def change(call: int) -> None:
        config.SCALE = float(call // 2)

    return lambda x: x * config.SCALE, change


@scenario("again")
def attribute_of_a_module_in_a_package() -> tuple:
    config = module("config", sub=module("config.sub", SCALE=1.0))

    def change(call: int) -> None:
        config.sub.SCALE = float(call // 2)

    global settings
    settings = config
    return lambda x: x * settings.sub.SCALE, change


@scenario("again")
def list_in_a_module() -> tuple:
    config = module("config", SCALES=[1.0])

    def change(call: int) -> None:
        config.SCALES[0] = float(call // 2)

    global settings
    settings = config
    return lambda x: x * settings.SCALES[0], change


@scenario("again")
def function_of_a_module() -> tuple:
    config = module("config", scale=lambda x: x)

    def change(call: int) -> None:
        if call == 5:
            config.scale = lambda x: x * 3

    global settings
    settings = config
    return lambda x: settings.scale(x), change


@scenario("again")
def class_in_a_module() -> tuple:
    class Inner:
        scale = 1.0

    config = module("config", Inner=Inner)

    def change(call: int) -> None:
        Inner.scale = float(call // 2)

    global settings
    settings = config
    return lambda x: x * settings.Inner.scale, change


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


@scenario("error")
def attribute_by_a_computed_name() -> tuple:
    holder = Plain(1.0)

    def change(call: int) -> None:
        holder.value = float(call)

    return lambda x: x * getattr(holder, "val" + "ue"[: len("ue")]), change


@scenario("error")
def attribute_that_setattr_counts() -> tuple:
    holder = Plain(0)

    def step(x: Tensor) -> Tensor:
        setattr(holder, "value", getattr(holder, "value") + 1)  # noqa: B009, B010
        return x * 2

    return step, nothing


@scenario("error")
def tensor_that_setattr_keeps() -> tuple:
    config = module("config")

    def step(x: Tensor) -> Tensor:
        y = x * 2
        setattr(config, "".join(["la", "st"]), y)
        return y + 1

    return step, nothing


@scenario("error")
def tensor_that_sys_modules_keeps() -> tuple:
    sys.modules["a_module_of_this_test"] = module("a_module_of_this_test")

    def step(x: Tensor) -> Tensor:
        vars(sys.modules["a_module_of_" + "this_test"])["last"] = x * 3
        return x + 1

    return step, nothing


@scenario("error")
def tensor_that_a_closure_keeps() -> tuple:
    kept = []
    keep = kept.append

    def step(x: Tensor) -> Tensor:
        keep(x * 3)
        return x + 1

    return step, nothing


@scenario("again")
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


@scenario("again")
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


@scenario("again")
def members_of_a_set() -> tuple:
    one, two = Plain(1.0), Plain(2.0)
    members = {one}

    def change(call: int) -> None:
        if call == 3:
            members.add(two)
        if call == 5:
            two.value = 7.0

    return lambda x: x * sum(member.value for member in members), change


@scenario("again")
def numbers_in_a_set() -> tuple:
    members = {1.0}

    def change(call: int) -> None:
        members.add(float(call // 2))

    return lambda x: x * sum(members), change


@scenario("again")
def items_of_a_deque() -> tuple:
    items = collections.deque([1.0, 2.0], maxlen=2)

    def change(call: int) -> None:
        if call in (3, 5):
            items.append(float(call))

    return lambda x: x * items[0], change


@scenario("again")
def attribute_of_a_class() -> tuple:
    class Settings:
        scale = 1.0

    def change(call: int) -> None:
        Settings.scale = float(call // 2)

    return lambda x: x * Settings.scale, change


@scenario("again")
def attribute_of_a_base_class() -> tuple:
    class Settings:
        scale = 1.0

    class Own(Settings):
        pass

    own = Own()

    def change(call: int) -> None:
        Settings.scale = float(call // 2)

    return lambda x: x * own.scale, change


@scenario("again")
def value_of_a_property() -> tuple:
    holder = Property(1.0)

    def change(call: int) -> None:
        holder._value = float(call // 2)

    return lambda x: x * holder.value, change


@scenario("again")
def value_in_slots() -> tuple:
    holder = Slotted(1.0)

    def change(call: int) -> None:
        holder.value = float(call // 2)

    return lambda x: x * holder.value, change


@scenario("again")
def value_of_a_namespace() -> tuple:
    holder = types.SimpleNamespace(inner=types.SimpleNamespace(scale=1.0))

    def change(call: int) -> None:
        holder.inner.scale = float(call // 2)

    return lambda x: x * holder.inner.scale, change


@scenario("again")
def default_of_a_function() -> tuple:
    def scaled(x: Tensor, scale: float = 1.0) -> Tensor:
        return x * scale

    def change(call: int) -> None:
        scaled.__defaults__ = (float(call // 2),)

    return lambda x: scaled(x), change


@scenario("again")
def code_of_a_function() -> tuple:
    def scaled(x: Tensor) -> Tensor:
        return x * 2

    def change(call: int) -> None:
        if call == 5:
            scaled.__code__ = (lambda x: x * 3).__code__

    return lambda x: scaled(x), change


@scenario("again")
def tensor_of_the_host() -> tuple:
    table = torch.ones(1)

    def change(call: int) -> None:
        if call in (3, 5):
            table.add_(1)

    return lambda x: x * table.to("xla"), change


@scenario("error")
def cache_by_functools() -> tuple:
    scale = [1.0]

    @functools.lru_cache(maxsize=1)
    def cached() -> float:
        return scale[0]

    def change(call: int) -> None:
        scale[0] = float(call)
        cached.cache_clear()

    return lambda x: x * cached(), change


@scenario("right")
def tensor_in_a_cache() -> tuple:
    @functools.lru_cache
    def table(size: int) -> Tensor:
        return torch.arange(size, device="xla") + 3.0

    return lambda x: x * table(1), nothing


@scenario("again")
def argument_that_is_an_object() -> tuple:
    holder = Plain(1.0)

    def change(call: int) -> None:
        holder.value = float(call // 2)

    return functools.partial(lambda h, x: x * h.value, holder), change


# (d) What a backward pass reads.


def training(function: type[torch.autograd.Function]) -> Callable[[Tensor], Tensor]:
    weight = nn.Parameter(device(2.0))

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        function.apply(weight * x).sum().backward()
        return weight.grad.clone()

    return step


@scenario("again")
def closure_of_a_backward() -> tuple:
    scale = [1.0]

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x + 0

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * scales[0]

    global scales
    scales = scale

    def change(call: int) -> None:
        scale[0] = float(call // 2 + 1)

    return training(Scaled), change


scales: list[float] = []


@scenario("again")
def attribute_of_a_module_in_a_backward() -> tuple:
    global settings
    settings = config = module("config", SCALE=1.0)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x + 0

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * settings.SCALE

    def change(call: int) -> None:
        config.SCALE = float(call // 2 + 1)

    return training(Scaled), change


@scenario("error")
def iterator_in_a_backward() -> tuple:
    global settings
    settings = itertools.count()

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x + 0

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * next(settings)

    return training(Scaled), nothing


@scenario("error")
def read_in_a_backward() -> tuple:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x + 0

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * gradient.sum().item()

    return training(Scaled), nothing


@scenario("error")
def sync_in_a_backward() -> tuple:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x + 0

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            torch_xla.sync()
            return gradient

    return training(Scaled), nothing


@scenario("again")
def attribute_in_a_forward() -> tuple:
    class Scaled(torch.autograd.Function):
        scale = 1.0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * Scaled.scale

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * Scaled.scale

    def change(call: int) -> None:
        Scaled.scale = float(call // 2 + 1)

    return training(Scaled), change


@scenario("error")
def iterator_in_a_hook_of_a_tensor() -> tuple:
    weight = nn.Parameter(device(2.0))
    numbers = itertools.count()

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        y = weight * x
        y.register_hook(lambda gradient: gradient * next(numbers))
        y.sum().backward()
        return weight.grad.clone()

    return step, nothing


# (e) Modules that are changed.


class Scaling(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(device(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x)

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.scale * self.weight.detach()


def changed_module(make: Callable[[], nn.Module], change: Callable[[nn.Module], Any]) -> Scenario:
    def scenario_of_it() -> tuple:
        model, undo = make(), []

        def change_once(call: int) -> None:
            if call == 5:
                undo.append(change(model))
            if call == -1:
                for function in undo:
                    if hasattr(function, "remove"):
                        function.remove()
                    elif callable(function):
                        function()

        return torch.no_grad()(lambda x: model(x)), change_once

    return scenario_of_it


def linear() -> nn.Module:
    made = nn.Linear(1, 1, bias=False)
    nn.init.ones_(made.weight)
    return made.to("xla")


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def parametrized() -> nn.Module:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return parametrize.register_parametrization(layer, "weight", Doubled()).to("xla")


def patched(target: Any, name: str, value: Any) -> Callable[[], None]:
    patch = mock.patch.object(target, name, value)
    patch.start()
    return patch.stop


def set_forward(model: nn.Module) -> None:
    model.forward = lambda x: x * 7


def set_scaled(model: nn.Module) -> None:
    model.scaled = lambda x: x * 7


def set_class(model: nn.Module) -> None:
    class Other(type(model)):
        def forward(self, x: Tensor) -> Tensor:
            return x * 7

    model.__class__ = Other


MODULES = {
    "forward hook": (linear, lambda m: m.register_forward_hook(lambda m, a, y: y * 7)),
    "forward pre-hook": (linear, lambda m: m.register_forward_pre_hook(lambda m, a: a[0] * 7)),
    "global forward hook": (
        linear,
        lambda m: nn.modules.module.register_module_forward_hook(lambda m, a, y: y * 7),
    ),
    "global forward pre-hook": (
        linear,
        lambda m: nn.modules.module.register_module_forward_pre_hook(lambda m, a: a[0] * 7),
    ),
    "parametrization": (
        lambda: nn.Sequential(linear()),
        lambda m: m.__setitem__(0, parametrized()),
    ),
    "forward of a linear": (linear, set_forward),
    "forward of a user's module": (Scaling, set_forward),
    "method of a user's module": (Scaling, set_scaled),
    "forward of a user's class": (
        Scaling,
        lambda m: patched(Scaling, "forward", lambda self, x: x * 7),
    ),
    "method of a user's class": (
        Scaling,
        lambda m: patched(Scaling, "scaled", lambda self, x: x * 7),
    ),
    "class of a module": (Scaling, set_class),
    "attribute of a module": (Scaling, lambda m: setattr(m, "scale", 7.0)),
    "parameter of a module": (
        Scaling,
        lambda m: setattr(m, "weight", nn.Parameter(device(7.0))),
    ),
    "buffer that hides nothing": (linear, lambda m: m.register_buffer("other", device(1.0))),
    "submodule": (
        lambda: nn.Sequential(linear(), linear()),
        lambda m: m.__setitem__(1, Scaling(7.0)),
    ),
    "more layers": (lambda: nn.Sequential(linear()), lambda m: m.append(Scaling(7.0)) and None),
    "mode of a dropout": (
        lambda: nn.Sequential(nn.Dropout(1.0), Scaling()),
        lambda m: m.eval() and None,
    ),
    "weight by .data": (
        linear,
        lambda m: setattr(m.weight, "data", torch.full((1, 1), 7.0, device="xla")),
    ),
    "weight in place": (linear, lambda m: m.weight.data.fill_(7.0) and None),
}
for _name, (_make, _change) in MODULES.items():
    SCENARIOS[f"module: {_name}"] = changed_module(_make, _change), "right"


@scenario("again")
def patched_global() -> tuple:
    undo: list[Callable[[], None]] = []

    def change(call: int) -> None:
        if call == 5:
            undo.append(patched(sys.modules[__name__], "helper", lambda x: x * 7))
        if call == -1:
            undo[0]()

    return lambda x: helper(x), change


def helper(x: Tensor) -> Tensor:
    return x * 2


@scenario("again")
def parametrization_is_removed() -> tuple:
    layer = parametrized()

    def change(call: int) -> None:
        if call == 5:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)

    return torch.no_grad()(lambda x: layer(x)), change


# (f) Memory that is written behind torch's back.


@scenario("again")
def memory_through_numpy() -> tuple:
    memory = np.ones(1, np.float32)
    table = torch.from_numpy(memory)

    def change(call: int) -> None:
        memory[0] = call // 2

    return lambda x: x * table.to("xla"), change


@scenario("again")
def memory_through_data() -> tuple:
    table = torch.ones(1)

    def change(call: int) -> None:
        table.data.fill_(call // 2)

    return lambda x: x * table.to("xla"), change


@scenario("again")
def memory_of_an_array() -> tuple:
    memory = np.ones(4, np.float32)
    part = memory[1:2]

    def change(call: int) -> None:
        memory[1] = call // 2

    return lambda x: x * float(part[0]), change


@scenario("again")
def memory_of_a_bfloat16_tensor() -> tuple:
    table = torch.ones(1, dtype=torch.bfloat16)

    def change(call: int) -> None:
        table.data.fill_(call // 2)

    return lambda x: x * table.to("xla"), change


@scenario("right")
def memory_on_the_device() -> tuple:
    table = device(1.0)

    def change(call: int) -> None:
        table.data.fill_(call // 2)

    return lambda x: x * table, change


@scenario("error")
def memory_of_python_array() -> tuple:
    memory = array.array("f", [1.0])

    def change(call: int) -> None:
        memory[0] = call

    return lambda x: x * memory[0], change


# (h) The environment and modes.


@scenario("again")
def environment() -> tuple:
    def change(call: int) -> None:
        os.environ["A_SCALE_OF_THIS_TEST"] = str(float(call // 2))

    return lambda x: x * float(os.environ["A_SCALE_OF_THIS_TEST"]), change


@scenario("again")
def environment_by_getenv() -> tuple:
    def change(call: int) -> None:
        os.environ["A_SCALE_OF_THIS_TEST"] = str(float(call // 2))

    return lambda x: x * float(os.getenv("A_SCALE_OF_THIS_TEST", "1")), change


@scenario("again")
def context_variable() -> tuple:
    variable = contextvars.ContextVar("variable", default=1.0)

    def change(call: int) -> None:
        variable.set(float(call // 2))

    return lambda x: x * variable.get(), change


@scenario("again")
def global_context_variable() -> tuple:
    def change(call: int) -> None:
        if call % 3 == 0:
            VARIABLE.set(types.SimpleNamespace(scale=float(call)))

    return lambda x: x * VARIABLE.get().scale, change


VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE")


class Times(TorchFunctionMode):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.relu else result


@scenario("again")
def function_mode() -> tuple:
    mode: list[Any] = [contextlib.nullcontext()]

    def change(call: int) -> None:
        if call in (3, 6, -1):
            mode[0].__exit__(None, None, None)
            mode[0] = Times(call) if call > 0 else contextlib.nullcontext()
            mode[0].__enter__()

    return lambda x: torch.relu(x), change


@scenario("again")
def deterministic_algorithms() -> tuple:
    def step(x: Tensor) -> Tensor:
        return x * (3.0 if torch.are_deterministic_algorithms_enabled() else 2.0)

    def change(call: int) -> None:
        torch.use_deterministic_algorithms(call in (3, 4, 6))

    return step, change


@scenario("again")
def default_device() -> tuple:
    def change(call: int) -> None:
        torch.set_default_device("xla" if call == 4 else "cpu")

    return lambda x: x * (3.0 if torch.get_default_device().type == "xla" else 2.0), change


@scenario("again")
def default_dtype() -> tuple:
    def change(call: int) -> None:
        torch.set_default_dtype(torch.float64 if call == 4 else torch.float32)

    return lambda x: x * (3.0 if torch.get_default_dtype() == torch.float64 else 2.0), change


@scenario("error")
def requires_grad_inside() -> tuple:
    weight = device(2.0)

    def step(x: Tensor) -> Tensor:
        weight.requires_grad_()
        return x * weight.detach()

    return step, nothing


@scenario("error")
def requires_grad_of_an_argument() -> tuple:
    return lambda x: x.requires_grad_().detach() * 2, nothing


@scenario("again")
def gradient_mode() -> tuple:
    def change(call: int) -> None:
        torch.set_grad_enabled(call not in (3, 4))

    return lambda x: x * (3.0 if torch.is_grad_enabled() else 2.0), change


# Functions that change from one trace to the next.


@scenario("error")
def number_of_traces() -> tuple:
    traces = array.array("i", [0])

    def step(x: Tensor) -> Tensor:
        traces[0] += 1
        return x * traces[0]

    return step, nothing


@scenario("right")
def second_trace_only() -> tuple:
    """As with a cache that capture does not see: the second program is that of all later ones."""
    traces = array.array("i", [0])

    def step(x: Tensor) -> Tensor:
        traces[0] = min(traces[0] + 1, 2)
        return x + 1 - 1 if traces[0] == 1 else x * 1

    return step, nothing


@scenario("error")
def constant_that_changes() -> tuple:
    traces = array.array("f", [0])

    def step(x: Tensor) -> Tensor:
        traces[0] += 1
        return x * torch.tensor(list(traces)).to("xla")

    return step, nothing


@scenario("error")
def tensor_of_the_state_that_changes() -> tuple:
    traces = array.array("i", [0])
    tensors = [device(1.0), device(2.0)]

    def step(x: Tensor) -> Tensor:
        traces[0] += 1
        return x * tensors[traces[0] % 2]

    return step, nothing


@scenario("error")
def result_that_changes() -> tuple:
    traces = array.array("i", [0])

    def step(x: Tensor) -> Any:
        traces[0] += 1
        return x * 2, traces[0]

    return step, nothing


@scenario("error")
def structure_that_changes() -> tuple:
    traces = array.array("i", [0])

    def step(x: Tensor) -> Any:
        traces[0] += 1
        return [x * 2] * (1 + traces[0] % 2)

    return step, nothing


@scenario("error")
def state_that_is_written_in_some_calls() -> tuple:
    traces = array.array("i", [0])
    total = device(0.0)

    def step(x: Tensor) -> Any:
        traces[0] += 1
        if traces[0] % 2:
            total.add_(x)
        return total + 0

    return step, nothing


@scenario("error")
def order_of_operations_that_changes() -> tuple:
    traces = array.array("i", [0])

    def step(x: Tensor) -> Any:
        traces[0] += 1
        return (x + 1) * 2 if traces[0] % 2 else x * 2 + 1

    return step, nothing


@pytest.mark.parametrize("name", SCENARIOS)
def test_never_stale(name: str) -> None:
    make, outcome = SCENARIOS[name]
    expected, _, error = run(make, lambda step: step)
    assert error is None
    random.seed(1)
    results, step, error = run(make, capture)
    assert results == expected[: len(results)]
    if outcome == "error":
        assert error is not None
        assert len(results) < CALLS
    else:
        assert error is None
        assert step.num_captures >= (2 if outcome == "again" else 1)


def test_object_that_refers_to_itself() -> None:
    def step(x: Tensor) -> Plain:
        result = Plain(x * 2)
        result.value = [result.value, result]
        return result

    with pytest.raises(CaptureError, match=r"an object of Plain, holds .* refers to itself"):
        capture(step)(device(1))
