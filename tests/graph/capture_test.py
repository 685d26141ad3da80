"""torch_xla_ext.capture gives lazy mode's results, for many small programs."""

import copy
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_xla
from testing.steps import check_equal, make_model, on_device, values
from testing.xla import compilations
from torch import nn

from torch_xla_ext import capture
from torch_xla_ext.graph.trace import Tracer


class Program:
    """A program that is run in steps: `make` gives its state, `step` a function of it."""

    def __init__(self, step: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        self.step, self.shapes = step, shapes

    def run(self, wrap: Callable[[Any], Any], steps: int = 4) -> list[Any]:
        state = [on_device(*shape, seed=i + 7) for i, shape in enumerate(self.shapes)]
        torch_xla.sync()
        step = wrap(lambda x: self.step(state, x))
        history = []
        for i in range(steps):
            result = step(on_device(4, seed=100 + i))
            torch_xla.sync()
            history.append(values((result, state)))
        return history


def add_in_place(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    state[0].add_(x)
    return state[0] * 2


def write_row(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    state[0][1] = x
    state[0][:, 2] += 1
    return state[0].sum(0)


def write_through_views(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    flat = state[0].view(-1)
    flat[:4].mul_(x)
    state[0].t()[0].add_(1)
    return flat + 0


def return_state(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    state[0].mul_(x)
    return state[0], state[0], state[0][0], state[0].detach()


def return_argument(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    return x, x + state[0][0], x[1:3], x.view(2, 2)


def swap(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    old = state[0].clone()
    state[0].copy_(state[1])
    state[1].copy_(old)
    return x.clone()


def overwrite(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    state[0].copy_(x.expand(4, 4))
    state[1].zero_()
    return {"sum": state[0].sum(), "text": "same", "nested": [x, (1, None)]}


def no_tensors(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    return None


def constants(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    table = torch.tensor([1.0, 2, 3, 4]).to("xla")
    return x * table + 2.5, torch.arange(3, device="xla"), torch.ones(2, device="xla")


def views_of_new(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    y = torch.outer(x, x)
    return y, y.t(), y[0], y.t(), y.diagonal() + 0


def dtypes(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    state[1].add_((x > 0).to(state[1].dtype))
    return x > 0, x.to(torch.int64), x.to(torch.bfloat16), x.argmax(), x.to(torch.int32) % 3


def non_contiguous(state: list[torch.Tensor], x: torch.Tensor) -> Any:
    t = state[0].t()
    t.index_copy_(0, torch.tensor([2]).to("xla"), x[None])
    return t, t.contiguous() @ x


PROGRAMS = {
    function.__name__: Program(function, (4, 4), (4, 4))
    for function in [
        *(add_in_place, write_row, write_through_views, return_state, return_argument, swap),
        *(overwrite, no_tensors, constants, views_of_new, dtypes, non_contiguous),
    ]
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_lazy(name: str) -> None:
    program = PROGRAMS[name]
    check_equal(program.run(capture), program.run(lambda step: step))


def test_compiles_once() -> None:
    weight, cache = on_device(4, 4), on_device(4, 4, seed=1)
    unrelated = on_device(4, seed=2) + 1

    @capture
    def step(x: torch.Tensor) -> torch.Tensor:
        cache.add_(x)
        return weight @ x

    torch_xla.sync()
    pending = unrelated * 3
    inputs = [on_device(4, seed=i) for i in range(5)]
    before = compilations()
    for x in inputs:
        step(x)
    assert compilations() == before + 1
    assert step.num_captures == 1
    assert torch_xla._XLAC._check_tensor_need_materialization([pending]) == [True]


def test_buffers_stay_where_they_are() -> None:
    """This holds for buffers that a step only writes to, too."""
    state = [on_device(8), on_device(8, seed=1), on_device(2, 4, seed=2)]
    inputs = [on_device(8, seed=10 + i) for i in range(3)]
    torch_xla.sync()

    @capture
    def step(x: torch.Tensor) -> None:
        state[0].copy_(x)
        state[1].copy_(state[2].view(8) * x)
        state[2].copy_(torch.ones_like(state[2]))

    pointers = []
    for x in inputs * 2:
        before = state[2].view(8).cpu()
        step(x)
        assert state[0].cpu().equal(x.cpu())
        assert state[1].cpu().equal(before * x.cpu())
        assert state[2].cpu().equal(torch.ones(2, 4))
        pointers.append([torch_xla._XLAC._unsafe_buffer_pointer(tensor) for tensor in state])
    assert step.num_captures == 1
    assert pointers == [pointers[0]] * len(pointers)


def test_results_alias_state() -> None:
    cache = on_device(4, 4)
    step = capture(lambda: (cache.add_(1), cache[1], cache.view(16)))
    for _ in range(3):
        same, row, flat = step()
        assert same is cache
        row.zero_()
        assert cache[1].tolist() == [0, 0, 0, 0]
        flat[:2] = 5
        assert cache[0, :2].tolist() == [5, 5]


def test_views_held_outside() -> None:
    cache = torch.zeros(4, 4, device="xla")
    row, detached = cache[2], cache.detach()
    step = capture(lambda x: cache[2].add_(x).sum())
    for i in range(1, 4):
        step(torch.ones(4, device="xla"))
        assert row.tolist() == [i] * 4
        assert detached[2].tolist() == [i] * 4


def test_view_as_state() -> None:
    cache = torch.zeros(4, 4, device="xla")
    rows = [cache[0], cache[1]]
    step = capture(lambda x: (rows[0].add_(x), cache[1].sub_(x), rows[1] + 0))
    for i in range(1, 4):
        result = step(torch.ones(4, device="xla"))
        assert result[2].tolist() == [-i] * 4
        assert cache.sum(1).tolist() == [4 * i, -4 * i, 0, 0]


def test_slices_as_arguments() -> None:
    data = on_device(6, 4)
    step = capture(lambda x: x * 2)
    for i in range(6):
        assert step(data[i]).tolist() == (data[i] * 2).tolist()
    assert step.num_captures == 1
    assert step(data[:, 0].contiguous()[:4]).tolist() == (data[:4, 0] * 2).tolist()


def test_slices_written() -> None:
    data = torch.zeros(3, 4, device="xla")
    step = capture(lambda x, y: x.add_(y))
    for i in range(3):
        result = step(data[i], torch.full((4,), i + 1.0, device="xla"))
        assert result.tolist() == [i + 1.0] * 4
    assert data[:, 0].tolist() == [1, 2, 3]


def test_duplicate_arguments() -> None:
    step = capture(lambda x, y: (x.add_(1), y * 2))
    a, b = torch.zeros(3, device="xla"), torch.zeros(3, device="xla")
    for expected in (2, 4):
        assert step(a, a)[1].tolist() == [expected] * 3
    assert step.num_captures == 1
    assert step(b, a)[1].tolist() == [4] * 3
    assert (a.tolist(), b.tolist()) == ([2] * 3, [1] * 3)
    assert step(a, a[:])[1].tolist() == [6] * 3


def test_labels_that_are_the_inputs() -> None:
    """`model(input_ids=ids, labels=ids)`, besides tensors that are state and views."""
    weight = torch.zeros(2, device="xla")

    @capture
    def step(batch: dict[str, torch.Tensor], view: torch.Tensor, state: torch.Tensor) -> Any:
        weight.add_(batch["ids"] - batch["labels"] + view)
        return state * 2

    for number in range(1, 6):
        ids, whole = on_device(2, seed=number), torch.ones(4, device="xla")
        assert step({"ids": ids, "labels": ids}, whole[1:3], weight).tolist() == [2 * number] * 2
    assert step.num_captures == 1


def test_argument_that_is_state() -> None:
    state = torch.zeros(3, device="xla")
    step = capture(lambda x: (state.add_(1), x * 2)[1])
    other = torch.full((3,), 5.0, device="xla")
    assert step(other).tolist() == [10] * 3
    assert step(state).tolist() == [4] * 3
    assert step(other).tolist() == [10] * 3
    assert step(state).tolist() == [8] * 3


def test_clones_keep_their_values() -> None:
    cache = torch.zeros(3, device="xla")
    step = capture(lambda: cache.add_(1).sum())
    clones = []
    for _ in range(4):
        clones.append((cache.clone(), cache * 10))
        step()
    assert [c.tolist() for c, _ in clones] == [[i] * 3 for i in range(4)]
    assert [c.tolist() for _, c in clones] == [[10 * i] * 3 for i in range(4)]


def test_state_made_by_clone() -> None:
    a = on_device(3)
    b = a.clone()
    step = capture(lambda: (a.add_(1), b.mul_(2), a - b)[2])
    expected = a.cpu(), a.cpu()
    for _ in range(3):
        expected = expected[0] + 1, expected[1] * 2
        torch.testing.assert_close(step().cpu(), expected[0] - expected[1])


def test_lazy_writes_between() -> None:
    cache = torch.zeros(4, 4, device="xla")
    step = capture(lambda x: (cache.add_(x), cache.sum())[1])
    x = torch.ones(4, device="xla")
    assert step(x).item() == 16
    cache[0].zero_()
    assert step(x).item() == 28
    cache.fill_(2)
    assert step(x).item() == 48
    assert step.num_captures == 1


@pytest.mark.parametrize("optimizer", ["SGD", "momentum", "AdamW"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_train_step(optimizer: str, set_to_none: bool) -> None:
    def train(wrap: Callable[[Any], Any]) -> list[Any]:
        torch_xla.manual_seed(3)
        model = make_model()
        parameters = list(model.parameters())
        chosen = {
            "SGD": lambda: torch.optim.SGD(parameters, lr=0.1),
            "momentum": lambda: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            "AdamW": lambda: torch.optim.AdamW(parameters, lr=0.1, capturable=True),
        }[optimizer]()

        def step(x: torch.Tensor) -> torch.Tensor:
            chosen.zero_grad(set_to_none=set_to_none)
            loss = model(x).square().mean()
            loss.backward()
            chosen.step()
            return loss.detach()

        step = wrap(step)
        history = []
        for i in range(5):
            loss = step(on_device(8, 4, seed=i))
            torch_xla.sync()
            history.append(values((loss, parameters, [p.grad for p in parameters])))
        return history

    check_equal(train(capture), train(lambda step: step))


def test_a_first_call_keeps_no_earlier_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call's sync donates the parameters' buffers, so that they are in memory once."""
    state: dict[str, torch.Tensor] = {}
    weight = on_device(4)
    sync, tracers = torch_xla.sync, []

    def count_tracers() -> None:
        tracers.append(sum(isinstance(found, Tracer) for found in gc.get_objects()))
        sync()

    monkeypatch.setattr(torch_xla, "sync", count_tracers)

    @capture
    def step(x: torch.Tensor) -> torch.Tensor:
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        return weight.sub_(momentum.add_(x))

    step(on_device(4))
    assert tracers == [0]


def test_random_numbers() -> None:
    def draw(wrap: Callable[[Any], Any]) -> list[Any]:
        torch_xla.manual_seed(11)
        drop = nn.Dropout(0.5)
        step = wrap(lambda x: (drop(x), torch.rand(3, device="xla"), torch.randn_like(x)))
        plain = wrap(lambda x: x + 1)
        history = []
        for i in range(4):
            history.append(values(step(torch.ones(16, device="xla"))))
            torch_xla.sync() if wrap is not capture else None
            if i == 1:
                plain(torch.ones(2, device="xla"))
                torch_xla.sync() if wrap is not capture else None
        return history

    captured = draw(capture)
    check_equal(captured, draw(lambda step: step))
    assert not torch.equal(captured[0][1], captured[1][1])


def test_keywords_and_nesting() -> None:
    @capture
    def step(batch: dict[str, Any], *, scale: float, extra: tuple = ()) -> dict[str, Any]:
        return {"x": batch["x"] * scale, "all": [e + batch["y"][0] for e in extra]}

    x, y, z = (on_device(3, seed=i) for i in range(3))
    for scale in (2.0, 3.0):
        result = step({"x": x, "y": [y]}, scale=scale, extra=(z, x))
        check_equal(values(result), values({"x": x * scale, "all": [z + y, x + y]}))
    with pytest.raises(KeyError):
        step({"x": x}, scale=1.0, extra=(x,))


def test_methods_and_copies() -> None:
    class Counter:
        def __init__(self) -> None:
            self.total = torch.zeros(3, device="xla")

        @capture
        def add(self, x: torch.Tensor) -> torch.Tensor:
            return self.total.add_(x)

    one, other = Counter(), Counter()
    x = torch.ones(3, device="xla")
    for i in range(1, 4):
        assert one.add(x).tolist() == [i] * 3
        assert other.add(2 * x).tolist() == [2 * i] * 3
    assert copy.copy(one.total) is not one.total


def test_log_counts_inputs_written_in_place(caplog: pytest.LogCaptureFixture) -> None:
    weight, cache = on_device(3), on_device(3, seed=1)

    @capture
    def step(x: torch.Tensor) -> torch.Tensor:
        cache.add_(x * weight)
        return cache + 1

    with caplog.at_level(logging.INFO, "torch_xla_ext.capture"):
        step(on_device(3, seed=2))
    assert "step: captured: 3 inputs, 1 of them written in place" in caplog.text
