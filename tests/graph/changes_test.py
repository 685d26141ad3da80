"""Captured steps see changes between calls: of closures, globals, modules and tensors' data."""

import sysconfig

import pytest
import torch
import torch_xla
from testing.steps import Model, check_equal, make_model, on_device, values
from torch import nn

from torch_xla_ext import capture


def test_closures_that_change() -> None:
    scale, weight = 2.0, on_device(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * scale + weight

    captured, x = capture(step), on_device(3, seed=1)
    for i in range(3):
        scale = float(i)
        weight = on_device(3, seed=i)
        check_equal(values(captured(x)), values(step(x)))
    assert captured.num_captures == 3


SCALE = 1.0


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def test_globals_that_change() -> None:
    global SCALE
    captured, x = capture(lambda x: helper(x)), on_device(3)
    for i in range(3):
        SCALE = float(i)
        check_equal(values(captured(x)), values(helper(x)))


def test_library_that_assigns_a_global(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, Triton assigns globals in its first compilation."""
    monkeypatch.setattr(sysconfig, "_CONFIG_VARS", None)
    monkeypatch.setattr(sysconfig, "_CONFIG_VARS_INITIALIZED", False, raising=False)

    def step(x: torch.Tensor) -> torch.Tensor:
        assert sysconfig.get_config_vars()
        return x + 1

    captured, x = capture(step), on_device(3)
    for _ in range(3):
        check_equal(values(captured(x)), values(x + 1))
    assert captured.num_captures == 1


@torch.no_grad()
def test_modules_that_change() -> None:
    model, reference = make_model(), make_model()
    step, x = capture(model), on_device(2, 4)

    def change(number: int, model: Model) -> None:
        if number == 1:
            model.layers[0].weight = nn.Parameter(on_device(4, 4, seed=5))
        if number == 2:
            model.layers[1].weight.data = on_device(4, 4, seed=6)
        if number == 3:
            model.layers[1].weight = model.layers[0].weight
        if number == 4:
            model.layers.append(nn.Linear(4, 4, bias=False).to("xla"))
            model.layers[2].weight.copy_(on_device(4, 4, seed=7))
        if number == 5:
            model.power = 2
        if number == 6:
            model.layers[0] = nn.Identity()
        if number == 7:
            model.calls = torch.full((), 3.0, device="xla")

    for i in range(8):
        change(i, model)
        change(i, reference)
        for _ in range(2):
            check_equal(values((step(x), model.calls)), values((reference(x), reference.calls)))
            torch_xla.sync()


def test_data_swaps() -> None:
    weight = nn.Parameter(on_device(3))
    step = capture(torch.no_grad()(lambda x: weight * x))
    x = on_device(3, seed=1)
    for i in range(12):
        weight.data = on_device(3, seed=i)
        check_equal(values(step(x)), values(weight * x))
    assert step.num_captures == 1


def test_storages_that_come_together() -> None:
    a, b = torch.zeros(3, device="xla"), torch.zeros(3, device="xla")
    step = capture(lambda: (a.add_(1), b.sum())[1])
    assert step().item() == 0
    b.data = a
    assert step().item() == 6
    assert step().item() == 9
