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
from testing.stale import Scenario, Scenarios, check, device, module, nothing
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


settings: Any = None


def as_global(value: Any) -> Any:
    """Makes a value the global `settings`."""
    global settings
    settings = value
    return value


@SCENARIOS.add("again")
def item_of_a_list_in_a_backward() -> tuple:
    scales = as_global([1.0])

    def change(call: int) -> None:
        scales[0] = float(call // 2 + 1)

    return training_with(lambda ctx, gradient: gradient * settings[0]), change


@SCENARIOS.add("again")
def attribute_of_a_module_in_a_backward() -> tuple:
    config = as_global(module("config", SCALE=1.0))

    def change(call: int) -> None:
        config.SCALE = float(call // 2 + 1)

    return training_with(lambda ctx, gradient: gradient * settings.SCALE), change


@SCENARIOS.add("error")
def iterator_in_a_backward() -> tuple:
    as_global(itertools.count())
    return training_with(lambda ctx, gradient: gradient * next(settings)), nothing


@SCENARIOS.add("error")
def read_in_a_backward() -> tuple:
    return training_with(lambda ctx, gradient: gradient * gradient.sum().item()), nothing


@SCENARIOS.add("error")
def sync_in_a_backward() -> tuple:
    return training_with(lambda ctx, gradient: (torch_xla.sync(), gradient)[1]), nothing


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
    return lambda x: x * table.to("xla"), lambda call: memory.fill(call // 2)


@SCENARIOS.add("again")
def memory_of_an_array() -> tuple:
    memory = np.ones(4, np.float32)
    part = memory[1:2]

    def change(call: int) -> None:
        memory[1] = call // 2

    return lambda x: x * float(part[0]), change


def memory_through_data(table: Tensor) -> tuple:
    return lambda x: x * table.to("xla"), lambda call: table.data.fill_(call // 2)


SCENARIOS["memory through data"] = (lambda: memory_through_data(torch.ones(1))), "again"
SCENARIOS["memory of bfloat16"] = (lambda: memory_through_data(torch.ones(1).bfloat16()), "again")


@SCENARIOS.add("right")
def memory_on_the_device() -> tuple:
    table = device(1.0)
    return lambda x: x * table, lambda call: table.data.fill_(call // 2)


@SCENARIOS.add("error")
def memory_of_python_array() -> tuple:
    memory = array.array("f", [1.0])
    return lambda x: x * memory[0], lambda call: memory.__setitem__(0, call)


# The environment, and modes of torch.


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
def context_variable() -> tuple:
    variable = contextvars.ContextVar("variable", default=1.0)
    return lambda x: x * variable.get(), lambda call: variable.set(float(call // 2))


VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE")


@SCENARIOS.add("again")
def global_context_variable() -> tuple:
    def change(call: int) -> None:
        if call % 3 == 0:
            VARIABLE.set(types.SimpleNamespace(scale=float(call)))

    return lambda x: x * VARIABLE.get().scale, change


SCALE = "A_SCALE_OF_THIS_TEST"
# Functions that read a setting of the process, and functions that change the setting.
SETTINGS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[int], object]]] = {
    "environment": (
        lambda x: x * float(os.environ["A_SCALE_OF_THIS_TEST"]),
        lambda call: os.environ.__setitem__(SCALE, str(float(call // 2))),
    ),
    "environment by getenv": (
        lambda x: x * float(os.getenv("A_SCALE_OF_THIS_TEST", "1")),
        lambda call: os.environ.__setitem__(SCALE, str(float(call // 2))),
    ),
    "deterministic algorithms": (
        lambda x: x * (3.0 if torch.are_deterministic_algorithms_enabled() else 2.0),
        lambda call: torch.use_deterministic_algorithms(call in (3, 4, 6)),
    ),
    "default device": (
        lambda x: x * (3.0 if torch.get_default_device().type == "xla" else 2.0),
        lambda call: torch.set_default_device("xla" if call == 4 else "cpu"),
    ),
    "default dtype": (
        lambda x: x * (3.0 if torch.get_default_dtype() == torch.float64 else 2.0),
        lambda call: torch.set_default_dtype(torch.float64 if call == 4 else torch.float32),
    ),
    "gradient mode": (
        lambda x: x * (3.0 if torch.is_grad_enabled() else 2.0),
        lambda call: torch.set_grad_enabled(call not in (3, 4)),
    ),
}
for _name, _case in SETTINGS.items():
    SCENARIOS[_name] = (lambda case=_case: case), "again"


@SCENARIOS.add("error")
def requires_grad_inside() -> tuple:
    weight = device(2.0)
    return lambda x: x * weight.requires_grad_().detach(), nothing


@SCENARIOS.add("error")
def requires_grad_of_an_argument() -> tuple:
    return lambda x: x.requires_grad_().detach() * 2, nothing


# Functions that change from one trace to the next.


def of_the_trace(step: Callable[[Tensor, int], Any]) -> Scenario:
    """A step of its argument and the number of the trace, in an array, which is not compared."""

    def scenario() -> tuple:
        traces = array.array("i", [0])

        def counted(x: Tensor) -> Any:
            traces[0] += 1
            return step(x, traces[0])

        return counted, nothing

    return scenario


OF_THE_TRACE: dict[str, Callable[[Tensor, int], Any]] = {
    "number of traces": lambda x, trace: x * trace,
    "constant that changes": lambda x, trace: x * torch.tensor([float(trace)]).to("xla"),
    "result that changes": lambda x, trace: (x * 2, trace),
    "structure that changes": lambda x, trace: [x * 2] * (1 + trace % 2),
    "order of operations that changes": lambda x, t: (x + 1) * 2 if t % 2 else x * 2 + 1,
}
for _name, _step in OF_THE_TRACE.items():
    SCENARIOS[_name] = of_the_trace(_step), "error"
# The second and later programs are equal, as with a cache that capture misses.
SCENARIOS["second trace only"] = (
    of_the_trace(lambda x, trace: x + 1 - 1 if trace == 1 else x * 1),
    "right",
)


@SCENARIOS.add("error")
def tensor_of_the_state_that_changes() -> tuple:
    tensors = [device(1.0), device(2.0)]
    return of_the_trace(lambda x, trace: x * tensors[trace % 2])()


@SCENARIOS.add("error")
def state_that_is_written_in_some_calls() -> tuple:
    total = device(0.0)
    return of_the_trace(lambda x, trace: (total.add_(x) if trace % 2 else total) + 0)()


@pytest.mark.parametrize("name", SCENARIOS)
def test_never_stale(name: str) -> None:
    check(*SCENARIOS[name])
