"""Results of torch.compile(backend="openxla") that share memory, and are written to later."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch_xla.debug import metrics

Results = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def _strided(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = (x * 2).t()
    return y, y[1:], y[:, ::2]


RESULTS: dict[str, Results] = {
    "base and views": lambda x: (y := x * 2, y.view(-1), y[0], y.detach()),
    "views alone": lambda x: (*(x * 2).split([1, 3], 1), x + 1),
    "overlapping views": lambda x: (*(y := x.cumsum(0))[:, :2].unbind(), y[1:], y.t()),
    "of a transposed tensor": _strided,
    "of the second result": lambda x: (x.max(1)[1], *(x * 2).topk(2)[0].unbind(1)),
    "one of them twice": lambda x: (y := x * 3, y, y[1]),
    "a detached argument": lambda x: (x.detach(), x + 1),
    "an argument that was detached before a write": lambda x: (x.detach(), x.mul_(2), x + 1),
}


@pytest.mark.parametrize("device, dynamic", [("xla", False), ("xla", True), ("cpu", False)])
@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str, dynamic: bool, device: str) -> None:
    """Each result is written to in turn. Afterwards the others must have the CPU's values."""

    def history(step: Results, device: str) -> list[list]:
        seen = []
        for size in (3, 3, 5) if dynamic else (3, 3):
            x = torch.arange(4.0 * size).reshape(size, 4).to(device)
            results = step(x)
            for result in results:
                result.add_(1)
                seen.append([each.tolist() for each in (x, *results)])
        return seen

    torch._dynamo.reset()
    compiled = torch.compile(RESULTS[name], backend="openxla", dynamic=dynamic)
    assert history(compiled, device) == history(RESULTS[name], "cpu")


@pytest.mark.parametrize("has_gradient", [False, True])
def test_a_write_behind_a_graph_break(has_gradient: bool) -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        column, flat = y[:, :1], y.view(-1)
        torch._dynamo.graph_break()
        y.mul_(2)
        column.add_(1)
        return [column.sum(), flat.sum(), y.sum()]

    torch._dynamo.reset()
    x = torch.ones(2, 3).requires_grad_(has_gradient)
    found = torch.compile(step, backend="openxla")(
        x.detach().to("xla").requires_grad_(has_gradient)
    )
    assert [each.tolist() for each in found] == [each.tolist() for each in step(x)]


def test_a_detached_argument_needs_no_program() -> None:
    compiled = torch.compile(lambda loss: loss.detach(), backend="openxla")
    for value in (1.0, 2.0):
        loss = torch.tensor(value, requires_grad=True).to("xla")
        torch_xla.sync(wait=True)
        programs = metrics.metric_data("ExecuteTime")
        result = compiled(loss)
        torch_xla.sync(wait=True)
        assert metrics.metric_data("ExecuteTime") == programs
        assert result.item() == value and loss.requires_grad and not result.requires_grad
