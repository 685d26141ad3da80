"""Gradients through regions of manual sharding."""

import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
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


def test_a_shape_that_the_parts_do_not_make_up() -> None:
    """The process was aborted."""
    mesh = xs.Mesh(np.arange(4), *MESHES["line"])
    part = xs.enable_manual_sharding(torch.randn(8, 4).to("xla"), ("x", None), mesh=mesh)
    with pytest.raises(ValueError, match=r"make up a tensor of \[8, 4\], not of .* \[8, 5\]"):
        xs.disable_manual_sharding(part, ("x", None), (8, 5), mesh=mesh)


def test_a_mark_in_a_region_is_refused() -> None:
    """The process was aborted."""
    mesh = xs.Mesh(np.arange(4), *MESHES["grid"])
    part = xs.enable_manual_sharding(torch.randn(8, 4).to("xla"), ("x", None), mesh=mesh)
    for tensor in (part.global_tensor, part.global_tensor * 2):
        xs.mark_sharding(tensor, mesh, (None, "y"))
        whole = xs.disable_manual_sharding(tensor, ("x", None), (8, 4), mesh=mesh).global_tensor
        with pytest.raises(RuntimeError, match="inside a region of manual sharding is one device"):
            whole.cpu()


def test_collectives_of_parts() -> None:
    """all_reduce returned the part, and others failed to compile with texts of XLA's verifier."""
    mesh = xs.Mesh(np.arange(4), *MESHES["line"])
    x = torch.randn(16, 4)

    def sums(combine: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        part = xs.enable_manual_sharding(x.to("xla"), ("x", None), mesh=mesh).global_tensor
        combined = combine(part * 2)
        whole = (combined.shape[0] * 4, 4)
        return xs.disable_manual_sharding(combined, ("x", None), whole, mesh=mesh).global_tensor

    def in_place(part: torch.Tensor) -> torch.Tensor:
        return xm.all_reduce(xm.REDUCE_SUM, [part])[0]

    wanted = x.view(4, 4, 4).sum(0) * 2
    for combine in (lambda part: xm.all_reduce(xm.REDUCE_SUM, part), in_place):
        torch.testing.assert_close(sums(combine).cpu(), wanted.repeat(4, 1))
    scattered = sums(lambda part: xm.reduce_scatter(xm.REDUCE_SUM, part, 0.5, 0, 4))
    torch.testing.assert_close(scattered.cpu(), wanted / 2)
    total = sums(lambda part: part)
    torch.testing.assert_close(xm.all_reduce(xm.REDUCE_SUM, total).cpu(), x * 2)  # not a part
    for tensor in (total, x.to("xla")):
        with pytest.raises(RuntimeError, match="all_to_all: under use_spmd"):
            xm.all_to_all(tensor, 0, 1, 4)


@pytest.mark.parametrize("reduce", [xm.all_reduce, xf.all_reduce])
def test_gradients_of_sums(reduce: Callable[..., torch.Tensor]) -> None:
    """Upstream, all_reduce of a part had no gradient, or that of one device."""
    mesh = xs.Mesh(np.arange(4), *MESHES["line"])
    x, weight = torch.randn(4, 8), torch.randn(3, 8)
    columns, whole = (None, "x"), (None, None)

    operands = [t.to("xla").requires_grad_() for t in (x, weight)]
    parts = [xs.enable_manual_sharding(t, columns, mesh=mesh).global_tensor for t in operands]
    total = reduce(xm.REDUCE_SUM, parts[0] @ parts[1].t(), scale=0.5)
    product = xs.disable_manual_sharding(total, whole, (4, 3), mesh=mesh).global_tensor
    product.sin().sum().backward()

    wanted = [t.clone().requires_grad_() for t in (x, weight)]
    expected = wanted[0] @ wanted[1].t() / 2
    expected.sin().sum().backward()
    torch.testing.assert_close(product.detach().cpu(), expected.detach())
    for t, other in zip(operands, wanted, strict=True):
        torch.testing.assert_close(t.grad.cpu(), other.grad)


def test_a_maximum_in_a_region_has_no_gradient() -> None:
    mesh = xs.Mesh(np.arange(4), *MESHES["line"])
    x = torch.randn(8, 4).to("xla").requires_grad_()
    part = xs.enable_manual_sharding(x, ("x", None), mesh=mesh).global_tensor
    most = xm.all_reduce(xm.REDUCE_MAX, part)
    whole = xs.disable_manual_sharding(most, (None, None), (2, 4), mesh=mesh).global_tensor
    torch.testing.assert_close(whole.detach().cpu(), x.detach().cpu().view(4, 2, 4).amax(0))
    with pytest.raises(RuntimeError, match="only all_reduce with REDUCE_SUM has gradients"):
        whole.sum().backward()


@pytest.mark.parametrize("kind", [xm.REDUCE_AND, xm.REDUCE_OR])
def test_and_and_or_are_of_booleans(kind: str) -> None:
    """XLA refused the program of numbers, in a sentence about its instructions."""
    mesh = xs.Mesh(np.arange(4), *MESHES["line"])
    x = torch.tensor([[True, False], [True, True], [True, False], [True, False]])
    on_devices = x.to("xla")
    xs.mark_sharding(on_devices, mesh, ("x", None))
    part = xs.enable_manual_sharding(on_devices, ("x", None), mesh=mesh).global_tensor
    total = xm.all_reduce(kind, part)
    whole = xs.disable_manual_sharding(total, (None, None), (1, 2), mesh=mesh).global_tensor
    assert whole.tolist() == [x.all(0).tolist() if kind == xm.REDUCE_AND else x.any(0).tolist()]
    with pytest.raises(TypeError, match=rf"compute '{kind}' of torch.bool, not of torch.int32"):
        xm.all_reduce(kind, part.int())
