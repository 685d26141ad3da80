"""torch_xla_ext.capture on tensors that are sharded over two devices."""

from __future__ import annotations

import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
from testing.spmd import sharded
from testing.xla import XLAC

from torch_xla_ext import CaptureError, capture, ops


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


def test_state_without_sharding(mesh: xs.Mesh) -> None:
    cache = sharded(torch.zeros(4, 4), mesh, None)
    with pytest.raises(CaptureError, match="cache, which has no sharding: call mark_sharding"):
        capture(lambda x: cache.add_(x))(torch.ones(4, 4).to("xla"))
    assert cache.sum().item() == 0


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
