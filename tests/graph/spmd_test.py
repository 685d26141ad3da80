"""torch_xla_ext.capture on tensors that are sharded over two devices."""

import os

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics
import torch_xla.distributed.spmd as xs
from testing.spmd import sharded
from testing.xla import XLAC

from torch_xla_ext import capture, ops

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made


@pytest.mark.parametrize("spec", [(None, None), ("x", None), (None, "x")], ids=str)
def test_state_keeps_its_sharding(mesh: xs.Mesh, spec: tuple) -> None:
    start = torch.arange(16.0).reshape(4, 4)
    weight, cache = sharded(start, mesh, (None, "x")), sharded(start, mesh, spec)
    before = XLAC._get_xla_sharding_spec(cache)

    @capture
    def step(x: torch.Tensor) -> torch.Tensor:
        cache.add_(x @ weight)
        return ops.simple_add(cache, cache)

    expected = start.clone()
    for i in range(4):
        x = torch.full((4, 4), float(i))
        expected = expected + x @ start
        torch.testing.assert_close(step(x.to("xla")).cpu(), 2 * expected)
        torch.testing.assert_close(cache.cpu(), expected)
    assert XLAC._get_xla_sharding_spec(cache) == before
    assert step.num_captures == 1


@pytest.mark.parametrize("spec", [(None, None), ("x", None), (None, "x")], ids=str)
def test_state_that_is_only_written(mesh: xs.Mesh, spec: tuple) -> None:
    cache = sharded(torch.zeros(4, 4), mesh, spec)
    before = XLAC._get_xla_sharding_spec(cache)

    @capture
    def step(x: torch.Tensor) -> None:
        cache.copy_(2 * x)

    for i in range(3):
        x = torch.arange(16.0).reshape(4, 4) + i
        step(sharded(x, mesh, ("x", None)))
        torch.testing.assert_close(cache.cpu(), 2 * x)
    assert XLAC._get_xla_sharding_spec(cache) == before


def test_states_that_are_assigned(mesh: xs.Mesh) -> None:
    """`state[:] = value` has a result without a sharding."""
    expected = [torch.arange(16.0).reshape(4, 4) + i for i in range(3)]
    caches = [sharded(cache, mesh, ("x", None)) for cache in expected]
    before = XLAC._get_xla_sharding_spec(caches[0])

    def write(states: list[torch.Tensor]) -> None:
        means = [state.mean() for state in states]
        for i in (1, 2, 0):
            states[i][:] = states[i] + means[i - 1]

    step = capture(lambda: write(caches))
    for _ in range(3):
        step()
        write(expected)
    for cache, value in zip(caches, expected, strict=True):
        torch.testing.assert_close(cache.cpu(), value)
        assert XLAC._get_xla_sharding_spec(cache) == before
    assert step.num_captures == 1


def test_state_without_sharding(mesh: xs.Mesh) -> None:
    """Each device has the whole state, and keeps it."""
    cache, expected = sharded(torch.zeros(4, 4), mesh, None), torch.zeros(4, 4)
    step = capture(lambda x: cache.add_(x))
    for i in range(3):
        x = torch.arange(16.0).reshape(4, 4) + i
        expected += x
        torch.testing.assert_close(step(sharded(x, mesh, ("x", None))).cpu(), expected)
    torch.testing.assert_close(cache.cpu(), expected)
    assert step.num_captures == 1


def test_arguments_of_another_sharding(mesh: xs.Mesh) -> None:
    step = capture(lambda x: 2 * x + 1)
    x = torch.arange(16.0).reshape(4, 4)
    for spec in [("x", None)] * 3 + [(None, "x"), ("x", None), None]:
        torch.testing.assert_close(step(sharded(x, mesh, spec)).cpu(), 2 * x + 1)
    assert step.num_captures == 3


def test_random_numbers(mesh: xs.Mesh) -> None:
    def draw(captured: bool) -> list[torch.Tensor]:
        torch_xla.manual_seed(5)

        def function() -> torch.Tensor:
            return torch.rand(4, device="xla")

        step = capture(function) if captured else function
        results = []
        for _ in range(3):
            results.append(step())
            if not captured:
                torch_xla.sync()
        return [result.cpu() for result in results]

    for one, other in zip(draw(True), draw(False), strict=True):
        torch.testing.assert_close(one, other)


def test_a_replays_work_does_not_grow_with_the_state(
    mesh: xs.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay reads shardings of its arguments only, and runs no program for a batch."""
    specs = [("x", None), (None, None), (None, "x")]
    states = [sharded(torch.full((4, 4), float(i)), mesh, specs[i % 3]) for i in range(30)]
    step = capture(lambda x: torch.stack([state.add_(x) for state in states])[0] + x, verify=0)
    batch = torch.ones(4, 4)
    for _ in range(2):
        step(batch.to("xla"))
    xm.wait_device_ops()
    read: list[int] = []
    find = XLAC._get_xla_sharding_specs
    monkeypatch.setattr(
        XLAC, "_get_xla_sharding_specs", lambda tensors: read.append(len(tensors)) or find(tensors)
    )
    count = lambda name: (metrics.metric_data(name) or (0,))[0]  # noqa: E731
    names = ["DeviceLockWait", "TensorsGraphSize", "TransferToDeviceTime", "ExecuteReplicatedTime"]
    before = [count(name) for name in names]
    for _ in range(3):
        result = step(batch.to("xla"))
    xm.wait_device_ops()
    locks, *others = (count(name) - old for name, old in zip(names, before, strict=True))
    assert read == [1, 1, 1]
    assert locks <= 4  # one of them is for the wait
    assert others == [0, 3, 3]
    torch.testing.assert_close(states[7].cpu(), torch.full((4, 4), 12.0))
    torch.testing.assert_close(result.cpu(), torch.full((4, 4), 6.0))


def test_a_state_that_gets_another_sharding(mesh: xs.Mesh) -> None:
    """The state's data is new, even if the program only reads it."""
    start = torch.arange(16.0).reshape(4, 4)
    weight, cache = sharded(start, mesh, ("x", None)), sharded(start, mesh, ("x", None))
    step = capture(lambda: cache.add_(weight), verify=0)
    for i in range(6):
        if i == 3:
            xs.clear_sharding(weight)
            xs.mark_sharding(weight, mesh, (None, "x"))
        torch.testing.assert_close(step().cpu(), (i + 2) * start)
    assert step.num_captures == 2
