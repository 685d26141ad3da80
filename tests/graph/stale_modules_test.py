"""Captured steps never use old values of modules that were changed after the capture."""

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from testing.stale import Scenario, Scenarios, check, device
from torch import Tensor, nn
from torch.nn.utils import parametrize

SCENARIOS = Scenarios()


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
    "parameter of a module": (Scaling, lambda m: setattr(m, "weight", nn.Parameter(device(7.0)))),
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


@SCENARIOS.add("again")
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


@SCENARIOS.add("again")
def parametrization_is_removed() -> tuple:
    layer = parametrized()

    def change(call: int) -> None:
        if call == 5:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)

    return torch.no_grad()(lambda x: layer(x)), change


@pytest.mark.parametrize("name", SCENARIOS)
def test_never_stale(name: str) -> None:
    check(*SCENARIOS[name])
