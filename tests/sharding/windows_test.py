"""Convolutions and pools of images that devices divide: the numbers of one device."""

import os

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch import nn
from torch.nn import functional

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made

SPECS = [
    (None, None, "y", None),
    (None, None, None, "x"),
    ("x", None, "y", None),
    ("x", None, None, None),
    (None, None, "x", "y"),
    (None, None, ("x", "y"), None),
]


@pytest.fixture(scope="module", autouse=True)
def mesh() -> xs.Mesh:
    xr.use_spmd()
    return xs.Mesh(np.arange(4), (2, 2), ("x", "y"))


def marked(tensor: torch.Tensor, mesh: xs.Mesh, spec: tuple) -> torch.Tensor:
    on_device = tensor.to("xla")
    xs.mark_sharding(on_device, mesh, spec)
    return on_device


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_gradients_of_convolutions(spec: tuple, mesh: xs.Mesh) -> None:
    """XLA's partitioner multiplied weights' gradients by the size of an unused mesh axis."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.ConvTranspose2d(6, 3, 3, groups=3),
        nn.Conv2d(3, 6, 3, groups=3),
    )
    x = torch.randn(4, 3, 8, 8)

    def gradients(x: torch.Tensor) -> list[torch.Tensor]:
        layers.zero_grad()
        layers(x).square().sum().backward()
        return [x.grad.cpu(), *(parameter.grad.cpu() for parameter in layers.parameters())]

    expected = gradients(x.clone().requires_grad_())
    layers.to("xla")
    on_devices = marked(x, mesh, spec).requires_grad_()
    for found, right in zip(gradients(on_devices), expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 1, 1), (2, 1, 0), (3, 2, 1), (2, 2, 0)]
)
def test_gradients_of_pools(
    size: int, stride: int, padding: int, spec: tuple, mesh: xs.Mesh
) -> None:
    """XLA's partitioner lost values that one device's windows add to another device's values."""
    x = torch.randn(4, 2, 8, 8)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        functional.max_pool2d(x, size, stride, padding).square().sum().backward()
        return x.grad.cpu()

    expected = gradient(x.clone().requires_grad_())
    found = gradient(marked(x, mesh, spec).requires_grad_())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_gradients_of_two_pools(spec: tuple, mesh: xs.Mesh) -> None:
    """The gradient of the average is divided, and so the one of the maximum was."""
    x = torch.randn(4, 2, 8, 8)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        largest, mean = functional.max_pool2d(x, 3, 1, 1), functional.avg_pool2d(x, 3, 1, 1)
        (largest.sin().sum() + mean.sin().sum()).backward()
        return x.grad.cpu()

    expected = gradient(x.clone().requires_grad_())
    found = gradient(marked(x, mesh, spec).requires_grad_())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_gradient_of_a_convolution_that_omits_margins(mesh: xs.Mesh) -> None:
    """The process was aborted if the gradient was to be divided along the image."""
    x, weight = torch.randn(4, 2, 10), torch.randn(3, 2, 1)

    def gradient(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        loss = functional.conv1d(x, weight, stride=3, padding=2).square().sum()
        return torch.autograd.grad(loss, x)[0]

    found = gradient(x.to("xla"), weight.to("xla"))
    xs.mark_sharding(found, mesh, (None, None, "x"))
    torch.testing.assert_close(found.cpu(), gradient(x, weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [0, 1])
def test_both_operands_are_divided(dim: int, mesh: xs.Mesh) -> None:
    x, weight = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 2, 4)
    spec = [None, None, None, None]
    spec[2 + dim] = "y"
    found = functional.conv2d(marked(x, mesh, tuple(spec)), marked(weight, mesh, tuple(spec)))
    torch.testing.assert_close(found.cpu(), functional.conv2d(x, weight), rtol=1e-4, atol=1e-4)


def test_in_a_manual_region(mesh: xs.Mesh) -> None:
    x, weight = torch.randn(4, 2, 4, 4), torch.randn(3, 2, 3, 3)
    spec = ("x", None, None, None)
    part = xs.enable_manual_sharding(marked(x, mesh, spec), spec, mesh=mesh).global_tensor
    whole = xs.enable_manual_sharding(
        marked(weight, mesh, (None,) * 4), (None,) * 4, mesh=mesh
    ).global_tensor
    found = functional.conv2d(part, whole)
    result = xs.disable_manual_sharding(found, spec, torch.Size((4, 3, 2, 2)), mesh=mesh)
    torch.testing.assert_close(
        result.global_tensor.cpu(), functional.conv2d(x, weight), rtol=1e-4, atol=1e-4
    )
