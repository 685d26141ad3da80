"""Results whose sizes the devices do not divide, when they are divided in another way.

From a tensor that is divided along two dimensions, XLA's partitioner made one that is divided along
one of them, and took this dimension for a smaller one: slices and argmax were wrong, and pads did
not compile.
"""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch.nn import functional

os.environ.setdefault("CPU_NUM_DEVICES", "8")  # before the first device is made

MESHES = [
    ((2, 4), ("y", "x", None)),
    ((2, 2, 2), ("x", "y", None)),
    ((2, 4), (("y", "x"), None, None)),
    ((2, 2, 2), (("x", "y"), None, None)),
    ((8,), (None, "x", None)),
]


@pytest.fixture(scope="module", autouse=True)
def on_8_devices() -> None:
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 8


def mark(tensor: torch.Tensor, shape: tuple[int, ...], spec: tuple) -> torch.Tensor:
    xs.mark_sharding(tensor, xs.Mesh(np.arange(8), shape, ("x", "y", "z")[: len(shape)]), spec)
    return tensor


# Functions of x with 19 or 22 rows, and of 16 rows.
RESULTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a slice": lambda x: x[2:18],
    "a slice with a step": lambda x: x[:16:2],
    "a slice of two dimensions": lambda x: x[:16, 1:9],
    "a slice of a flipped tensor": lambda x: x.flip(0)[:8],
    "a pad": lambda x: functional.pad(x, (0, 0, 0, 0, 1, 23 - len(x))),
    "a shift": lambda x: x.roll(1, 0)[:16],
    "argmax": lambda x: x.argmax(0),
    "max": lambda x: x.max(0)[1],
    "a pool": lambda x: functional.max_pool1d(x.permute(2, 1, 0), 3, 1, 1)[..., :16].permute(
        2, 1, 0
    ),
}


@pytest.mark.parametrize("rows", [19, 22])
@pytest.mark.parametrize("name", RESULTS)
def test_results(name: str, rows: int) -> None:
    x, y = torch.randn(8, 16, 2), torch.randn(rows - 16, 16, 2)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return RESULTS[name](torch.cat([x, y, x + 1]))

    expected = function(x, y)
    for divided in MESHES:
        for marked in MESHES:
            result = function(mark(x.to("xla"), *divided), y.to("xla"))
            mark(result, marked[0], (*marked[1][: result.dim() - 1], None))
            assert torch.equal(result.cpu(), expected), (divided, marked)


def test_of_one_axis() -> None:
    """A reshape divides two dimensions."""
    x, y = torch.randn(16, 4), torch.randn(2, 3, 4)

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.view(2, 8, 4), y], 1)[:, 2:10]

    result = function(mark(x.to("xla"), (8,), ("x", None)), y.to("xla"))
    mark(result, (8,), (None, "x", None))
    assert torch.equal(result.cpu(), function(x, y))
