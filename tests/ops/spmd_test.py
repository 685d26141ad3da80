"""Each operator on sharded tensors of two devices; tests/ops/BUILD sets CPU_NUM_DEVICES.

tests/sharding checks that each device computes only its part.
"""

import itertools
import os

import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
from samples import OperatorSamples, for_each_differentiable_operator
from testing.spmd import sharded
from testing.xla import XLAC

from torch_xla_ext import ops

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made

SPECS = [None, ("x", None), (None, "x")]


def test_a_compiled_function_meets_another_sharding(mesh: xs.Mesh) -> None:
    """The sharding changes after the calls for which upstream torch_xla compares shardings."""
    function = torch.compile(lambda x: 2 * x + 1, backend="openxla")
    x = torch.arange(16.0).reshape(4, 4)
    for spec in [("x", None)] * 8 + [(None, "x"), ("x", None)]:
        argument = sharded(x, mesh, spec)
        torch_xla.sync()
        torch.testing.assert_close(function(argument).cpu(), 2 * x + 1)


@pytest.mark.parametrize("specs", list(itertools.product(SPECS, SPECS)), ids=str)
def test_sharded_operands(mesh: xs.Mesh, specs: tuple) -> None:
    a, b = torch.randn(8, 6), torch.randn(8, 6)
    x, y = (sharded(t, mesh, spec) for t, spec in zip((a, b), specs, strict=True))
    assert torch.equal(ops.simple_add(x, y).cpu(), a + b)
    computed = ops.simple_add(x * 2, y.t().contiguous().t())
    torch.testing.assert_close((computed @ x.t()).cpu(), (a * 2 + b) @ a.t())


@for_each_differentiable_operator
@pytest.mark.parametrize("spec", [("x", None), (None, "x")], ids=str)
def test_every_operator(mesh: xs.Mesh, op: OperatorSamples, spec: tuple) -> None:
    args = tuple(torch.cat([arg, arg.flip(0)]) for arg in op.arguments(torch.float32))
    result = op.function(*(sharded(arg, mesh, spec) for arg in args))
    assert torch.equal(result.cpu(), op.reference(*args))


@pytest.mark.parametrize("spec", SPECS[1:], ids=str)
def test_sharded_result(mesh: xs.Mesh, spec: tuple) -> None:
    a, b = torch.randn(8, 6), torch.randn(8, 6)
    result = ops.simple_add(sharded(a, mesh, ("x", None)), sharded(b, mesh, None))
    xs.mark_sharding(result, mesh, spec)
    assert torch.equal(result.cpu(), a + b)


def test_in_place(mesh: xs.Mesh) -> None:
    """The operator accepts the tensor and its wrapper, which mark_sharding returns."""
    caches = [torch.randn(4, 8, 2, 64) for _ in range(2)]
    placed = [cache.to("xla") for cache in caches]
    wrapped = [xs.mark_sharding(cache, mesh, (None, None, "x", None)) for cache in placed]
    spec = XLAC._get_xla_sharding_spec(placed[0])
    for step, targets in enumerate((wrapped, placed, wrapped)):
        key, value, slots = torch.randn(2, 64), torch.randn(2, 64), torch.tensor([step + 9])
        ops.kv_cache_update(*(x.to("xla") for x in (key[None], value[None], slots)), *targets)
        torch_xla.sync()
        for cache, token in zip(caches, (key, value), strict=True):
            cache[1, step + 1] = token
        assert all(
            torch.equal(cache.cpu(), expected)
            for cache, expected in zip(placed, caches, strict=True)
        )
    assert "devices=" in spec
    assert XLAC._get_xla_sharding_spec(placed[0]) == spec


def test_gradient(mesh: xs.Mesh) -> None:
    a, b = torch.randn(8, 6), torch.randn(8, 6)
    x = sharded(a, mesh, ("x", None)).requires_grad_()
    ops.simple_add(x, sharded(b, mesh, (None, "x"))).pow(2).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * (a + b))


def test_compiled(mesh: xs.Mesh) -> None:
    compiled = torch.compile(
        lambda x, y: ops.simple_add(x, y) * 2, backend="openxla", fullgraph=True
    )
    for spec in (("x", None), (None, "x")):
        a, b = torch.randn(8, 6), torch.randn(8, 6)
        result = compiled(sharded(a, mesh, spec), sharded(b, mesh, None))
        assert torch.equal(result.cpu(), (a + b) * 2)


def test_manual_sharding_runs_on_the_shards(mesh: xs.Mesh) -> None:
    a, b = torch.randn(8, 6), torch.randn(8, 6)
    spec = ("x", None)
    shards = [
        xs.enable_manual_sharding(sharded(t, mesh, spec), spec, mesh=mesh).global_tensor
        for t in (a, b)
    ]
    assert [shard.shape for shard in shards] == [(4, 6), (4, 6)]
    total = ops.simple_add(*shards)
    whole = xs.disable_manual_sharding(total, spec, (8, 6), mesh=mesh).global_tensor
    assert torch.equal(whole.cpu(), a + b)
