"""Pads, pools and cumulative operators of one divided tensor in one program.

XLA's partitioner gave the second operator the margin of the first: the -inf of a maximum to an
average, or the zeros of a sum to a product.
"""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch.nn import functional

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made


@pytest.fixture(scope="module", autouse=True)
def mesh() -> xs.Mesh:
    xr.use_spmd()
    return xs.Mesh(np.arange(4), (4,), ("x",))


PROGRAMS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "cumulative": lambda x: [
        x.cumsum(2),
        x.cumprod(2),
        x.cummax(2)[0],
        x.cumsum(2).cumprod(2),
        x.logcumsumexp(2),
    ],
    "product first": lambda x: [x.cumprod(2), x.cumsum(2)],
    "pads": lambda x: [
        functional.pad(x, (0, 0, 2, 2), value=value) for value in (0.0, 1.0, -3.0, 0.0)
    ],
    "pools": lambda x: [
        functional.max_pool2d(x, 3, 2, 1),
        functional.avg_pool2d(x, 3, 2, 1),
        -functional.max_pool2d(-x, 3, 2, 1),
    ],
    "a convolution": lambda x: [
        functional.conv2d(x, x[:3, :, :3, :3].contiguous(), padding=1),
        functional.max_pool2d(x, 3, 1, 1),
        functional.avg_pool2d(x, 3, 1, 1),
    ],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_of_one_tensor(name: str, mesh: xs.Mesh) -> None:
    x = torch.randn(4, 2, 16, 8, generator=torch.Generator().manual_seed(0))
    on_device = x.to("xla")
    xs.mark_sharding(on_device, mesh, (None, None, "x", None))
    results = PROGRAMS[name](on_device)
    torch_xla.sync()
    for result, expected in zip(results, PROGRAMS[name](x), strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-4)
