"""torch.compile(backend="openxla") of functions whose arguments are views.

Upstream torch_xla 2.8.1 has two errors. If the function makes a view of an argument that is a view
itself, the argument becomes a constant. If it writes to one of several arguments that share memory,
the others keep their old values.
"""

import inspect
import logging
from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch._dynamo.backends.registry import lookup_backend

import torch_xla_ext


def check(
    function: Callable[..., torch.Tensor], views: Callable[[torch.Tensor], list[torch.Tensor]]
) -> None:
    """Compares three calls with the CPU's: the result, the arguments, and the arguments' bases."""

    def run(device: str, step: Callable[..., torch.Tensor]) -> list[object]:
        base = torch.arange(1.0, 17.0, device=device).view(4, 4).clone()
        arguments = views(base)
        if device == "xla":
            torch_xla.sync()
        history = []
        for _ in range(3):
            result = step(*arguments)
            history.append([t.tolist() for t in (result, *arguments, base)])
        return history

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="openxla")
    assert run("xla", compiled) == run("cpu", function)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda base: base.view(2, 8),
    "slice": lambda base: base[1:3],
    "transposed": torch.Tensor.t,
    "pending": lambda base: base[:].add_(1),
    "unbind": lambda base: torch.stack([base, base + 1]).unbind()[1],
}


def write_what_a_view_says(x: torch.Tensor) -> torch.Tensor:
    view = x.squeeze(1)
    x += view.clone()
    return x * 2


def return_a_view(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x.squeeze(1)


@pytest.mark.parametrize("function", [write_what_a_view_says, return_a_view])
@pytest.mark.parametrize("view", VIEWS)
def test_view_of_a_view(
    view: str, function: Callable[[torch.Tensor], torch.Tensor], device: torch.device
) -> None:
    check(function, lambda base: [VIEWS[view](base)])


PAIRS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "one and its transpose": lambda base: [base, base.t()],
    "overlapping": lambda base: [base[:2], base[1:3]],
    "one twice": lambda base: [base[:], base[:]],
    "rows": lambda base: [base[0], base[1]],
    "unbind": lambda base: list(torch.stack([base, base + 1])),
}


def write_one_read_both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x += 1
    return x + y


def read_before_both_are_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    before = x * 2
    x.add_(1)
    y.mul_(2)
    return before + y


@pytest.mark.parametrize("function", [write_one_read_both, read_before_both_are_written])
@pytest.mark.parametrize("pair", PAIRS)
def test_arguments_that_share_memory(
    pair: str,
    function: Callable[..., torch.Tensor],
    device: torch.device,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "torch_xla_ext.openxla"):
        check(function, PAIRS[pair])
    assert "that share memory" in caplog.text


def test_backward_compiler_is_wrapped_once(device: torch.device) -> None:
    """torch wraps it again in each compilation; after several hundred this is a RecursionError."""
    for factor in (2, 3):
        torch._dynamo.reset()
        x = torch.ones(2, device=device, requires_grad=True)
        torch.compile(lambda x, factor=factor: (x * factor).sum(), backend="openxla")(x).backward()
        assert x.grad.tolist() == [factor, factor]
    compile_for = inspect.getclosurevars(lookup_backend("openxla")).nonlocals["compile_for"]
    backend = inspect.getclosurevars(compile_for).nonlocals["upstream"]
    wrapped = inspect.getclosurevars(backend.kwargs["bw_compiler"]).nonlocals["bw_compiler_fn"]
    assert wrapped.__name__ == "backward_compiler"


@pytest.mark.parametrize("way", ["openxla", "captured"])
def test_tensors_of_a_written_parameter(way: str, device: torch.device) -> None:
    """A parameter is a detached tensor. Other tensors that share its data get new values, too."""
    parameter = torch.nn.Parameter(torch.zeros(4, device=device))

    def update() -> None:
        with torch.no_grad():
            parameter.add_(1)

    torch._dynamo.reset()
    is_captured = way == "captured"
    step = torch_xla_ext.capture(update) if is_captured else torch.compile(update, backend=way)
    for number in range(1, 5):
        step()
        assert parameter.tolist() == [number] * 4
    views = parameter.detach(), parameter.data[1:], parameter.detach().view(2, 2)
    step()
    assert [view.flatten()[0].item() for view in (parameter, *views)] == [5.0] * 4
    del views
    step()
    parameter.data = parameter.data * 2
    step()
    assert parameter.tolist() == [13.0] * 4
    torch_xla.sync()
    parameter.detach().mul_(2)
    step()
    assert parameter.tolist() == [27.0] * 4
