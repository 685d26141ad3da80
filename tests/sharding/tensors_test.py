"""Tensors of the host that go to several devices."""

import os

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

from torch_xla_ext import sharding

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made


@pytest.fixture(scope="module", autouse=True)
def mesh() -> xs.Mesh:
    xr.use_spmd()
    return xs.Mesh(np.arange(4), (4,), ("x",))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.uint8])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_joined_shards(dim: int, dtype: torch.dtype, mesh: xs.Mesh) -> None:
    whole = (torch.rand(8, 4, 12) * 100).to(dtype)
    shards = [shard.contiguous() for shard in whole.chunk(4, dim)]
    joined = sharding.join(shards, mesh, dim)
    spec = xs.ShardingSpec(mesh, tuple("x" if i == dim else None for i in range(3)))
    (sent,) = sharding.send([whole], [spec])
    spec_of = torch_xla._XLAC._get_xla_sharding_spec
    assert spec_of(joined) == spec_of(sent) != ""
    assert torch.equal(joined.cpu().view(torch.uint8), whole.view(torch.uint8))
    found = torch_xla._XLAC._get_local_shards([joined])[0]
    for (shard, _), expected in zip(found, shards, strict=True):
        assert torch.equal(shard.cpu().view(torch.uint8), expected.view(torch.uint8))
