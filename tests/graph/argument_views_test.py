"""torch_xla_ext.capture of functions whose arguments are views, such as results of detach()."""

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.utils import _pytree as pytree

from torch_xla_ext import CaptureError, capture

Step = Callable[[torch.Tensor], object]
NUMBERS = [1.0, -2.0]


def leaf(device: torch.device) -> torch.Tensor:
    return torch.tensor(NUMBERS).to(device).requires_grad_()


def view(device: torch.device) -> torch.Tensor:
    return torch.tensor(NUMBERS).to(device).detach().requires_grad_()


def with_gradient(device: torch.device) -> torch.Tensor:
    x = view(device)
    x.grad = torch.tensor([5.0, 3.0]).to(device)
    return x


class State:
    calls = 0
    kept: object = None


def backward(state: State, x: torch.Tensor) -> None:
    (x * x).sum().backward()


def changing_state(state: State, x: torch.Tensor) -> None:
    state.calls = 1  # in the first call, which is not captured
    backward(state, x)


def on_the_host(state: State, x: torch.Tensor) -> None:
    (torch.view_as_real(torch.polar(x.abs(), 0 * x)).sum(-1) * x).sum().backward()


@pytest.fixture(params=[False, True], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """With other threads, a step whose operators run on the host is not captured."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    if request.param:
        thread.start()
    yield
    end.set()
    if request.param:
        thread.join()


@pytest.mark.parametrize("make", [leaf, view, with_gradient])
@pytest.mark.parametrize("step", [backward, changing_state, on_the_host])
@pytest.mark.usefixtures("threads")
def test_gradients_in_each_call(step: Callable, make: Callable, device: torch.device) -> None:
    """Arguments that are views lost their gradients in calls that were not captured."""
    state = State()
    captured = capture(lambda x: step(state, x))
    expected = make(torch.device("cpu"))
    step(State(), expected)
    for _ in range(3):
        x = make(device)
        try:
            captured(x)
        except CaptureError as error:
            assert make is with_gradient or "on the host" in str(error)
            continue
        assert x.grad.tolist() == expected.grad.tolist()


@pytest.mark.parametrize("make", [leaf, view])
@pytest.mark.usefixtures("threads")
def test_results_that_require_gradients(make: Callable, device: torch.device) -> None:
    def step(state: State, x: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        return (x * x).sum()

    state, x = State(), make(device)
    captured = capture(lambda x: step(state, x))
    try:
        captured(x).backward()
    except CaptureError as error:
        assert make is view and "requires a gradient" in str(error)
        return
    assert x.grad.tolist() == [2.0, -4.0]


@pytest.mark.parametrize("of", [lambda x: x[:1], lambda x: (x * 2)[1:], lambda x: x.view(1, 2)])
def test_views_of_tensors_that_require_gradients(of: Step, device: torch.device) -> None:
    base = leaf(device)
    captured = capture(lambda x: (x * x).sum().backward())
    with pytest.raises(CaptureError, match="argument 0 is a view that was made of a tensor which"):
        captured(of(base))
    values = capture(lambda x: (x.detach() * 3).sum())
    for _ in range(3):
        assert values(of(base)).item() == of(leaf(torch.device("cpu"))).sum().item() * 3


def keep(state: State, x: torch.Tensor) -> torch.Tensor:
    state.kept = x
    return x.sum()


def keep_a_view(state: State, x: torch.Tensor) -> torch.Tensor:
    state.kept = {"view": x[1:]}
    return x.sum()


def write_and_keep(state: State, x: torch.Tensor) -> torch.Tensor:
    state.kept = [x.detach()]
    return x.mul_(3)[:1]


def return_a_view(state: State, x: torch.Tensor) -> dict[str, torch.Tensor]:
    state.kept = None
    return {"view": x[1:], "whole": x.view(-1), "new": x[1:] + 1, "same": x}


@pytest.mark.parametrize("of", [lambda x: x[1:5], torch.Tensor.detach, lambda x: x.view(2, 3)])
@pytest.mark.parametrize("step", [keep, keep_a_view, write_and_keep, return_a_view])
def test_what_a_call_that_is_not_captured_keeps(
    step: Callable, of: Step, device: torch.device
) -> None:
    """What it kept or returned was part of a copy, which later writes to the argument missed."""

    def run(on: torch.device, wrap: Callable[[Step], Step]) -> list[object]:
        state, base = State(), torch.arange(6.0).to(on)
        x = of(base)
        outputs = wrap(lambda x: step(state, x))(x)
        base.mul_(2)
        x.add_(1)
        values = [base, x, outputs, state.kept]
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.tolist, values)

    assert run(device, capture) == run(torch.device("cpu"), lambda step: step)


@pytest.mark.parametrize("assign", ["item", "element", "append", "nested"])
def test_assignments_to_containers_of_arguments(assign: str, device: torch.device) -> None:
    """The caller did not see what the first call assigned."""

    def step(batch: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        doubled = batch["x"][0] * 2
        if assign == "item":
            batch["doubled"] = doubled
        elif assign == "nested":
            batch["more"] = {"doubled": [doubled]}
        elif assign == "append":
            batch["x"].append(doubled)
        else:
            batch["x"][0] = doubled
        return doubled.sum()

    x = torch.arange(3.0).to(device)
    with pytest.raises(CaptureError, match=r"assigns a tensor to argument 0.*return the tensor"):
        capture(step)({"x": [x]})
    # These need no assignment in the caller's objects.
    returned = capture(lambda batch: (step(batch), batch))
    popped = capture(lambda batch: batch.pop("x")[0] * 3)
    written = capture(lambda batch: batch["x"][0].mul_(2))
    for _ in range(3):
        _, batch = returned({"x": [x]})
        assert [0.0, 2.0, 4.0] in [value.tolist() for value in pytree.tree_leaves(batch)]
        assert popped({"x": [x]}).tolist() == [0.0, 3.0, 6.0]
    for _ in range(2):
        written({"x": [x]})
    assert x.tolist() == [0.0, 4.0, 8.0]
