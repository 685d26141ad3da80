"""Captured steps never use old values of backward passes, host memory, or modes."""

import array
import contextlib
import contextvars
import itertools
import os
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_xla
from testing.stale import Scenarios, check, device, module, nothing
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

SCENARIOS = Scenarios()


# Values that a backward pass reads.


def training_with(backward: Callable[[Any, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A training step of a function that is the identity, with this backward pass."""

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x + 0

    Identity.backward = staticmethod(backward)
    return training(Identity)


def training(function: type[torch.autograd.Function]) -> Callable[[Tensor], Tensor]:
    weight = nn.Parameter(device(2.0))

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        function.apply(weight * x).sum().backward()
        return weight.grad.clone()

    return step


@SCENARIOS.add("again")
def closure_of_a_backward() -> tuple:
    scale = [1.0]

    global scales
    scales = scale

    def change(call: int) -> None:
        scale[0] = float(call // 2 + 1)

    return training_with(lambda ctx, gradient: gradient * scales[0]), change


scales: list[float] = []


@SCENARIOS.add("again")
def attribute_of_a_module_in_a_backward() -> tuple:
    global settings
    settings = config = module("config", SCALE=1.0)

    def change(call: int) -> None:
        config.SCALE = float(call // 2 + 1)

    return training_with(lambda ctx, gradient: gradient * settings.SCALE), change


@SCENARIOS.add("error")
def iterator_in_a_backward() -> tuple:
    global settings
    settings = itertools.count()

    return training_with(lambda ctx, gradient: gradient * next(settings)), nothing


@SCENARIOS.add("error")
def read_in_a_backward() -> tuple:
    return training_with(lambda ctx, gradient: gradient * gradient.sum().item()), nothing


@SCENARIOS.add("error")
def sync_in_a_backward() -> tuple:
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        torch_xla.sync()
        return gradient

    return training_with(backward), nothing


@SCENARIOS.add("again")
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


@SCENARIOS.add("error")
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


# Memory that is written without torch's operators.


@SCENARIOS.add("again")
def memory_through_numpy() -> tuple:
    memory = np.ones(1, np.float32)
    table = torch.from_numpy(memory)

    def change(call: int) -> None:
        memory[0] = call // 2

    return lambda x: x * table.to("xla"), change


@SCENARIOS.add("again")
def memory_through_data() -> tuple:
    table = torch.ones(1)

    def change(call: int) -> None:
        table.data.fill_(call // 2)

    return lambda x: x * table.to("xla"), change


@SCENARIOS.add("again")
def memory_of_an_array() -> tuple:
    memory = np.ones(4, np.float32)
    part = memory[1:2]

    def change(call: int) -> None:
        memory[1] = call // 2

    return lambda x: x * float(part[0]), change


@SCENARIOS.add("again")
def memory_of_a_bfloat16_tensor() -> tuple:
    table = torch.ones(1, dtype=torch.bfloat16)

    def change(call: int) -> None:
        table.data.fill_(call // 2)

    return lambda x: x * table.to("xla"), change


@SCENARIOS.add("right")
def memory_on_the_device() -> tuple:
    table = device(1.0)

    def change(call: int) -> None:
        table.data.fill_(call // 2)

    return lambda x: x * table, change


@SCENARIOS.add("error")
def memory_of_python_array() -> tuple:
    memory = array.array("f", [1.0])

    def change(call: int) -> None:
        memory[0] = call

    return lambda x: x * memory[0], change


# The environment, and modes of torch.


@SCENARIOS.add("again")
def environment() -> tuple:
    def change(call: int) -> None:
        os.environ["A_SCALE_OF_THIS_TEST"] = str(float(call // 2))

    return lambda x: x * float(os.environ["A_SCALE_OF_THIS_TEST"]), change


@SCENARIOS.add("again")
def environment_by_getenv() -> tuple:
    def change(call: int) -> None:
        os.environ["A_SCALE_OF_THIS_TEST"] = str(float(call // 2))

    return lambda x: x * float(os.getenv("A_SCALE_OF_THIS_TEST", "1")), change


@SCENARIOS.add("again")
def context_variable() -> tuple:
    variable = contextvars.ContextVar("variable", default=1.0)

    def change(call: int) -> None:
        variable.set(float(call // 2))

    return lambda x: x * variable.get(), change


@SCENARIOS.add("again")
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


@SCENARIOS.add("again")
def function_mode() -> tuple:
    mode: list[Any] = [contextlib.nullcontext()]

    def change(call: int) -> None:
        if call in (3, 6, -1):
            mode[0].__exit__(None, None, None)
            mode[0] = Times(call) if call > 0 else contextlib.nullcontext()
            mode[0].__enter__()

    return lambda x: torch.relu(x), change


@SCENARIOS.add("again")
def deterministic_algorithms() -> tuple:
    def step(x: Tensor) -> Tensor:
        return x * (3.0 if torch.are_deterministic_algorithms_enabled() else 2.0)

    def change(call: int) -> None:
        torch.use_deterministic_algorithms(call in (3, 4, 6))

    return step, change


@SCENARIOS.add("again")
def default_device() -> tuple:
    def change(call: int) -> None:
        torch.set_default_device("xla" if call == 4 else "cpu")

    return lambda x: x * (3.0 if torch.get_default_device().type == "xla" else 2.0), change


@SCENARIOS.add("again")
def default_dtype() -> tuple:
    def change(call: int) -> None:
        torch.set_default_dtype(torch.float64 if call == 4 else torch.float32)

    return lambda x: x * (3.0 if torch.get_default_dtype() == torch.float64 else 2.0), change


@SCENARIOS.add("error")
def requires_grad_inside() -> tuple:
    weight = device(2.0)

    def step(x: Tensor) -> Tensor:
        weight.requires_grad_()
        return x * weight.detach()

    return step, nothing


@SCENARIOS.add("error")
def requires_grad_of_an_argument() -> tuple:
    return lambda x: x.requires_grad_().detach() * 2, nothing


@SCENARIOS.add("again")
def gradient_mode() -> tuple:
    def change(call: int) -> None:
        torch.set_grad_enabled(call not in (3, 4))

    return lambda x: x * (3.0 if torch.is_grad_enabled() else 2.0), change


# Functions that change from one trace to the next.


@SCENARIOS.add("error")
def number_of_traces() -> tuple:
    traces = array.array("i", [0])

    def step(x: Tensor) -> Tensor:
        traces[0] += 1
        return x * traces[0]

    return step, nothing


@SCENARIOS.add("right")
def second_trace_only() -> tuple:
    """A function whose second and later programs are equal, as with a cache that capture misses."""
    traces = array.array("i", [0])

    def step(x: Tensor) -> Tensor:
        traces[0] = min(traces[0] + 1, 2)
        return x + 1 - 1 if traces[0] == 1 else x * 1

    return step, nothing


@SCENARIOS.add("error")
def constant_that_changes() -> tuple:
    traces = array.array("f", [0])

    def step(x: Tensor) -> Tensor:
        traces[0] += 1
        return x * torch.tensor(list(traces)).to("xla")

    return step, nothing


@SCENARIOS.add("error")
def tensor_of_the_state_that_changes() -> tuple:
    traces = array.array("i", [0])
    tensors = [device(1.0), device(2.0)]

    def step(x: Tensor) -> Tensor:
        traces[0] += 1
        return x * tensors[traces[0] % 2]

    return step, nothing


@SCENARIOS.add("error")
def result_that_changes() -> tuple:
    traces = array.array("i", [0])

    def step(x: Tensor) -> Any:
        traces[0] += 1
        return x * 2, traces[0]

    return step, nothing


@SCENARIOS.add("error")
def structure_that_changes() -> tuple:
    traces = array.array("i", [0])

    def step(x: Tensor) -> Any:
        traces[0] += 1
        return [x * 2] * (1 + traces[0] % 2)

    return step, nothing


@SCENARIOS.add("error")
def state_that_is_written_in_some_calls() -> tuple:
    traces = array.array("i", [0])
    total = device(0.0)

    def step(x: Tensor) -> Any:
        traces[0] += 1
        if traces[0] % 2:
            total.add_(x)
        return total + 0

    return step, nothing


@SCENARIOS.add("error")
def order_of_operations_that_changes() -> tuple:
    traces = array.array("i", [0])

    def step(x: Tensor) -> Any:
        traces[0] += 1
        return (x + 1) * 2 if traces[0] % 2 else x * 2 + 1

    return step, nothing


@pytest.mark.parametrize("name", SCENARIOS)
def test_never_stale(name: str) -> None:
    check(*SCENARIOS[name])
