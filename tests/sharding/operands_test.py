"""Gathers, shifts, grouped convolutions and copies of sharded tensors are right."""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch.nn import functional

os.environ.setdefault("CPU_NUM_DEVICES", "8")  # before the first device is made


@pytest.fixture(scope="module", autouse=True)
def cube() -> xs.Mesh:
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 8
    return xs.Mesh(np.arange(8), (2, 2, 2), ("x", "y", "z"))


def marked(tensor: torch.Tensor, mesh: xs.Mesh, spec: tuple) -> torch.Tensor:
    on_devices = tensor.to("xla")
    xs.mark_sharding(on_devices, mesh, spec)
    return on_devices


def rows(mesh: xs.Mesh) -> tuple:
    return (mesh.axis_names, None)


@pytest.mark.parametrize("spec", [("x", "y"), ("y", "z"), ("z", None)], ids=str)
def test_a_gather_by_indices_that_all_axes_divide(cube: xs.Mesh, spec: tuple) -> None:
    """XLA's partitioner took half of the elements from another device's part."""
    x, indices = torch.randn(8, 12), torch.randint(0, 12, (8, 3))
    found = marked(x, cube, spec).gather(1, marked(indices, cube, rows(cube)))
    assert torch.equal(found.cpu(), x.gather(1, indices))


def test_elements_by_two_indices(cube: xs.Mesh) -> None:
    x = torch.randn(8, 16, 4)
    i, j = torch.randint(0, 8, (8, 4)), torch.randint(0, 16, (8, 4))
    found = marked(x, cube, ("z", "y", "x"))[
        marked(i, cube, ("y", "z")), marked(j, cube, rows(cube))
    ]
    xs.mark_sharding(found, cube, (None, "x", "z"))
    assert torch.equal(found.cpu(), x[i, j])


SHIFTS = {
    "a pad": lambda x: functional.pad(x, (0, 0, 1, -1)),
    "a pad to the left": lambda x: functional.pad(x, (0, 0, -3, 3)),
    "a pad of both": lambda x: functional.pad(x, (1, -1, 2, -2)),
    "a slice of a pad": lambda x: functional.pad(x, (0, 0, 1, 0))[:-1],
    "a slice from a pad": lambda x: functional.pad(x, (0, 0, 0, 2))[2:],
    "a larger pad": lambda x: functional.pad(x, (0, 0, 3, 5)),
}


@pytest.mark.parametrize("is_marked", [False, True])
@pytest.mark.parametrize("name", SHIFTS)
def test_shifts_whose_result_is_marked(name: str, is_marked: bool, cube: xs.Mesh) -> None:
    """If the operand was whole, XLA's partitioner left out the shift."""
    shift: Callable[[torch.Tensor], torch.Tensor] = SHIFTS[name]
    x = torch.randn(8, 6)
    found = shift(marked(x, cube, rows(cube)) if is_marked else x.to("xla"))
    xs.mark_sharding(found, cube, rows(cube))
    assert torch.equal(found.cpu(), shift(x))


@pytest.mark.parametrize("kernel_size", [1, 3])
@pytest.mark.parametrize("groups", [2, 4, 16])
@pytest.mark.parametrize("spec", [None, ("x", None, None, None), (None, "x", None, None)], ids=str)
def test_grouped_convolutions(kernel_size: int, groups: int, spec: tuple | None) -> None:
    """For windows of one pixel, XLA's partitioner ended the process, raised or was wrong."""
    mesh = xs.Mesh(np.arange(8), (8,), ("x",))
    x, weight = torch.randn(8, 16, 4, 4), torch.randn(16, 16 // groups, kernel_size, kernel_size)

    def gradients(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.requires_grad_(), weight.requires_grad_()]
        result = functional.conv2d(x, weight, groups=groups)
        return [result.detach(), *torch.autograd.grad(result.square().sum(), leaves)]

    found = gradients(
        x.to("xla") if spec is None else marked(x, mesh, spec),
        marked(weight, mesh, ("x", None, None, None)),
    )
    torch_xla.sync()
    for one, right in zip(found, gradients(x, weight), strict=True):
        torch.testing.assert_close(one.cpu(), right, rtol=1e-4, atol=1e-3)


def test_the_gradient_of_a_grouped_convolution_that_is_marked(cube: xs.Mesh) -> None:
    """XLA's partitioner ended the process."""
    mesh = xs.Mesh(np.arange(8), (2, 4), ("x", "y"))
    x, weight = torch.randn(8, 8, 8), torch.randn(8, 4, 3)

    def gradients(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [x.requires_grad_(), weight.requires_grad_()]
        result = functional.conv1d(x, weight, padding=1, groups=2)
        return torch.autograd.grad(result.square().sum(), leaves)

    found = gradients(
        marked(x, mesh, ("x", None, None)), marked(weight, cube, (cube.axis_names, None, None))
    )
    xs.mark_sharding(found[1], mesh, (None, "y", None))
    torch_xla.sync()
    for one, right in zip(found, gradients(x, weight), strict=True):
        torch.testing.assert_close(one.cpu(), right, rtol=1e-4, atol=1e-3)


def written(x: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
    whole = torch.zeros(4, 8, 16, device=x.device)
    whole.copy_(x)
    rows = torch.empty_like(x).copy_(row)
    part = x.clone()
    part[2:5].copy_(row)
    part[6] = row
    return [whole, rows, part, torch.zeros(8, 16, dtype=torch.int64, device=x.device).copy_(row)]


def test_copies_to_tensors_of_another_rank(cube: xs.Mesh) -> None:
    """The copy got its source's sharding, with which XLA compiled no program."""
    x, row = torch.randn(8, 16), torch.randn(16)
    found = written(marked(x, cube, ("x", "y")), marked(row, cube, (("x", "y"),)))
    for one, right in zip(found, written(x, row), strict=True):
        assert torch.equal(one.cpu(), right)
