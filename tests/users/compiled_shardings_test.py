"""torch.compile(backend="openxla") of two functions of the same tensors, under SPMD.

Upstream torch_xla 2.8.1 treats a tensor as a constant in the second function.
"""

import os
from collections.abc import Callable

import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
from testing.spmd import sharded

import torch_xla_ext

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made


@pytest.mark.parametrize("spec", [None, ("x", None), (None, "x")])
def test_two_functions(mesh: xs.Mesh, spec: tuple | None) -> None:
    torch._dynamo.reset()
    read = torch.compile(lambda t: t * 2, backend="openxla")
    write = torch.compile(lambda t: t.add_(1), backend="openxla")
    on_host = torch.randn(4, 4)
    on_devices = sharded(on_host, mesh, spec)
    for _ in range(3):
        torch.testing.assert_close(read(on_devices).cpu(), on_host * 2)
        write(on_devices)
        on_host += 1
        torch.testing.assert_close(on_devices.cpu(), on_host)


@pytest.mark.parametrize("spec", [None, ("x", None), (None, "x")])
def test_a_graph_break(mesh: xs.Mesh, spec: tuple | None) -> None:
    def step(t: torch.Tensor) -> torch.Tensor:
        twice = t * 2
        torch._dynamo.graph_break()
        t[:, 3] += 1
        return twice

    torch._dynamo.reset()
    compiled = torch.compile(step, backend="openxla")
    on_host = torch.randn(4, 4)
    on_devices = sharded(on_host, mesh, spec)
    for _ in range(3):
        torch.testing.assert_close(compiled(on_devices).cpu(), step(on_host))
        torch.testing.assert_close(on_devices.cpu(), on_host)


def test_a_pending_mark_keeps_its_value(mesh: xs.Mesh) -> None:
    """torch.compile drops what is pending after it has traced a function."""
    values = torch.randn(4, 4)
    x = values.to("xla")
    torch_xla.sync()
    xs.annotate_custom_sharding(x, mesh, ("x", None))
    torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))
    assert torch.equal(x.cpu(), values)


@pytest.mark.parametrize("views", [lambda x: x.unbind(0), lambda x: (x[0], x[1]), torch.chunk])
def test_captured_writes_to_one_of_several_views(views: Callable, mesh: xs.Mesh) -> None:
    """The view was marked with the sharding of its base, which has more dimensions."""

    def step(key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        key[..., 1:3] += 1
        return value * 2

    values = torch.randn(2, 4, 4)
    cache = sharded(values, mesh, (None, "x", None))
    split = (lambda x: views(x, 2)) if views is torch.chunk else views
    captured = torch_xla_ext.capture(step)
    keys, others = split(cache), split(values)
    for _ in range(4):
        result = captured(*keys)
        torch_xla.sync()
        torch.testing.assert_close(result.cpu(), step(*others))
        torch.testing.assert_close(cache.cpu(), values)
