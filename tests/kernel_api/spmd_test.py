"""custom_call on tensors that are sharded over two devices; BUILD sets CPU_NUM_DEVICES."""

import os

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

from kernel_api import kernels
from torch_xla_ext import custom_call

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made


@pytest.fixture(scope="module", autouse=True)
def mesh() -> xs.Mesh:
    kernels.register()
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 2
    return xs.Mesh(np.arange(2), (2,), ("x",))


@pytest.mark.parametrize("api", ["untyped", "ffi"])
@pytest.mark.parametrize("aliases", [None, {0: 0}], ids=str)
def test_every_device_computes_the_whole(mesh: xs.Mesh, api: str, aliases: dict | None) -> None:
    x = torch.randn(4, 6)
    marked = xs.mark_sharding(x.to("xla"), mesh, ("x", None))
    assert isinstance(marked, xs.XLAShardedTensor)
    for operand in (marked, marked.global_tensor):
        (y,) = custom_call("TestIncrement", [operand], [operand], api=api, aliases=aliases)
        assert torch.equal(y.cpu(), x + 1)
        assert torch.equal(operand.cpu(), x)


def test_side_effect(mesh: xs.Mesh) -> None:
    x = torch.randn(4)
    operand = x.to("xla")
    xs.mark_sharding(operand, mesh, ("x",))
    (y,) = custom_call("TestIncrement", [operand], [operand], has_side_effect=True)
    assert torch.equal(y.cpu(), x + 1)
