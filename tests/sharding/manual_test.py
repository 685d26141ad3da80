"""Gradients through regions of manual sharding."""

import os

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made


@pytest.fixture(scope="module", autouse=True)
def spmd() -> None:
    xr.use_spmd()


MESHES = {"line": ((4,), ("x",)), "grid": ((2, 2), ("x", "y")), "other": ((2, 2), ("y", "x"))}


@pytest.mark.parametrize("spec", [("x", None), (None, "x")], ids=str)
@pytest.mark.parametrize("kind", MESHES)
def test_gradient(kind: str, spec: tuple) -> None:
    """Some devices have copies of the same part, and compute the same."""
    mesh = xs.Mesh(np.arange(4), *MESHES[kind])
    x, y = torch.randn(8, 4), torch.randn(8, 4)
    operands = [t.to("xla").requires_grad_() for t in (x, y)]
    expected = [t.clone().requires_grad_() for t in (x, y)]
    parts = [xs.enable_manual_sharding(t * 3, spec, mesh=mesh).global_tensor for t in operands]
    part = (parts[0] * parts[1]).sin()
    whole = xs.disable_manual_sharding(part, spec, (8, 4), mesh=mesh).global_tensor
    (whole * operands[0] + operands[0]).sum().backward()
    product = (expected[0] * 3 * (expected[1] * 3)).sin()
    (product * expected[0] + expected[0]).sum().backward()
    torch.testing.assert_close(whole.detach().cpu(), product.detach())
    for t, other in zip(operands, expected, strict=True):
        torch.testing.assert_close(t.grad.cpu(), other.grad)


def test_an_uneven_part_is_refused() -> None:
    mesh = xs.Mesh(np.arange(4), *MESHES["line"])
    x = torch.randn(6, 4).to("xla")
    message = "dimension 0 of 6 cannot be divided among 4 devices; pad it to 8"
    with pytest.raises(ValueError, match=message):
        xs.enable_manual_sharding(x, ("x", None), mesh=mesh)
    torch_xla.sync()
