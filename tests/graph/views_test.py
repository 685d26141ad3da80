"""torch_xla_ext.capture of functions whose state is views with pending operations."""

from collections.abc import Callable

import pytest
import torch

from torch_xla_ext import capture

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda base: base.view(2, 2),
    "slice": lambda base: base[1:],
    "whole slice": lambda base: base[:],
    "alias": torch.ops.aten.alias.default,
    "detach": torch.Tensor.detach,
}
WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "not written": lambda view: None,
    "add_": lambda view: view.add_(1),
    "zero_": torch.Tensor.zero_,
    "foreach": lambda view: torch._foreach_add_([view], 1),
}


@pytest.mark.parametrize("step_writes", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
def test_pending_view_is_no_constant(
    view: str, write: str, step_writes: bool, device: torch.device
) -> None:
    def run(on: torch.device, wrap: Callable[..., Callable[..., torch.Tensor]]) -> list[object]:
        base = torch.arange(1.0, 5.0, device=on)
        state = VIEWS[view](base)
        WRITES[write](state)

        def step(x: torch.Tensor) -> torch.Tensor:
            result = x + state
            if step_writes:
                state.add_(1)
            return result

        step = wrap(step)
        history = []
        for _ in range(3):
            result = step(torch.ones_like(state))
            state.mul_(2)  # outside
            history.append([t.tolist() for t in (result, state, base)])
        return history

    assert run(device, capture) == run(torch.device("cpu"), lambda step: step)


@pytest.mark.parametrize("set_to_none", [False, True])
def test_gradients_are_zeroed_last(set_to_none: bool, device: torch.device) -> None:
    def run(on: torch.device, wrap: Callable[..., Callable[..., torch.Tensor]]) -> list[object]:
        weight = torch.nn.Parameter(torch.arange(1.0, 5.0, device=on))
        optimizer = torch.optim.SGD([weight], lr=0.125, momentum=0.5)

        def step(x: torch.Tensor) -> torch.Tensor:
            loss = (weight * x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
            return loss.detach()

        step = wrap(step)
        return [
            [step(torch.full((4,), float(i), device=on)).item(), weight.tolist()] for i in range(4)
        ]

    assert run(device, capture) == run(torch.device("cpu"), lambda step: step)


def test_view_in_a_call_that_is_not_captured() -> None:
    """The first call fills a cache and is not captured, but it writes to its argument, a view."""
    data, cache = torch.zeros(3, 4, device="xla"), {}

    def step(x: torch.Tensor) -> torch.Tensor:
        cache.setdefault("made", torch.ones(4, device="xla"))
        return x.add_(cache["made"])

    captured = capture(step)
    for row in (0, 1, 2, 0):
        part = data[row]
        assert captured(part) is part
    assert captured.num_captures == 1
    assert data[:, 0].tolist() == [2, 1, 1]


def test_view_that_was_transposed_in_place(device: torch.device) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        view = x[1:]
        view.t_()
        view.add_(torch.arange(2.0, device=x.device))
        return view * 1

    run = capture(step)
    for factor in range(1, 4):
        x = torch.arange(6.0).view(3, 2) * factor
        own = x.to(device)
        assert run(own).tolist() == step(x).tolist()
        assert own.tolist() == x.tolist()


def test_result_that_was_transposed_in_place(device: torch.device) -> None:
    """The result is square, so its shape does not reveal the transposition."""
    step = capture(lambda x: x[1:].t_())
    for factor in range(1, 4):
        x = torch.arange(6.0).view(3, 2) * factor
        own = x.to(device)
        result, expected = step(own), x[1:].t()
        assert result.tolist() == expected.tolist()
        result[0], expected[0] = 10, 10
        assert own.tolist() == x.tolist()


def test_transposed_result_writes_to_the_argument(device: torch.device) -> None:
    step = capture(lambda x: [x.t(), x[1:].t()[1:]])
    for _ in range(3):
        x = torch.arange(9.0).view(3, 3)
        own = x.to(device)
        for result, expected in zip(step(own), [x.t(), x[1:].t()[1:]], strict=True):
            result[1] = 10
            expected[1] = 10
        assert own.tolist() == x.tolist()


@pytest.mark.parametrize("view", VIEWS)
def test_views_made_between_replays(view: str, device: torch.device) -> None:
    def run(on: torch.device, wrap: Callable[..., Callable[..., object]]) -> list[object]:
        state = torch.zeros(4, device=on)
        step = wrap(lambda x: state.add_(x).sum())
        views, history = [], []
        for number in range(6):
            step(torch.ones(4, device=on))
            if number % 2 == 1:
                views.append(VIEWS[view](state))
            history.append([state.tolist(), *(view.tolist() for view in views)])
        return history

    assert run(device, capture) == run(torch.device("cpu"), lambda step: step)
