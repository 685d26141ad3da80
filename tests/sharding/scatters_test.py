"""Scatters whose operand, indices, updates and result are divided along different axes.

XLA's partitioner added updates in the wrong places.
"""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made

# The partition specs of operand, indices, updates and result.
BOTH = ("x", "y")
SPECS = [
    ((None, BOTH), BOTH, ("x", None), (None, None)),
    ((BOTH, None), BOTH, ("y", None), (None, None)),
    ((BOTH, None), ("y", "x"), (None, None), (None, None)),
    ((None, BOTH), (None, "x"), ("y", "x"), (None, None)),
    ((None, BOTH), (None, "x"), (None, "x"), ("x", "y")),
    ((BOTH, None), ("x", None), ("x", None), ("y", "x")),
    (BOTH, BOTH, BOTH, BOTH),
]


@pytest.fixture(scope="module", autouse=True)
def mesh() -> xs.Mesh:
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 4
    return xs.Mesh(np.arange(4), (2, 2), ("x", "y"))


def gradient_of_gather(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad((leaf.gather(0, i) * y).sum(), leaf)[0] + x


SCATTERS: dict[str, Callable[..., torch.Tensor]] = {
    "rows": lambda x, i, y: x.scatter_add(0, i, y),
    "columns": lambda x, i, y: x.scatter_add(1, i, y),
    "amax": lambda x, i, y: x.scatter_reduce(0, i, y, "amax"),
    "elements": lambda x, i, y: x.index_put((i, i.flip(1)), y, accumulate=True),
    "windows": lambda x, i, y: (
        x[..., None]
        .expand(16, 16, 4)
        .index_put((i[:, 0], i[:, 1]), y[:, :4], accumulate=True)[..., 1]
    ),
    "gradient of gather": gradient_of_gather,
}


@pytest.mark.parametrize("specs", SPECS, ids=str)
@pytest.mark.parametrize("name", SCATTERS)
def test_scatters(name: str, specs: tuple, mesh: xs.Mesh) -> None:
    operands = torch.randn(16, 16), torch.randint(0, 16, (8, 16)), torch.randn(8, 16)
    on_devices = []
    for operand, spec in zip(operands, specs, strict=False):
        on_devices.append(operand.to("xla"))
        xs.mark_sharding(on_devices[-1], mesh, spec)
    result = SCATTERS[name](on_devices[0] * 2, *on_devices[1:])
    xs.mark_sharding(result, mesh, specs[-1])
    expected = SCATTERS[name](operands[0] * 2, *operands[1:])
    torch.testing.assert_close(result.cpu(), expected)
