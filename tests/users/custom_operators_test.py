"""Operators by torch.library.custom_op whose functions write to their own new tensors."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.as_on_the_cpu import EXACTLY, check_calls
from testing.ways import run_by
from torch import Tensor


def filled(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[1:3] = x[1:3] * 2
    y[0].add_(1)
    return y


def multiplied(x: Tensor) -> Tensor:
    """Like transformers' grouped_mm_fallback."""
    y = torch.zeros_like(x)
    torch.mm(x[:2], x, out=y[:2])
    return y


def of_several(x: list[Tensor], factor: float) -> list[Tensor]:
    results = [tensor.clone() for tensor in x]
    for result in results:
        result.t()[0] *= factor
    return results


def operator(function: Callable) -> Callable:
    return torch.library.custom_op(f"custom_operators_test::{function.__name__}", mutates_args=())(
        function
    )


FILLED, MULTIPLIED, OF_SEVERAL = map(operator, (filled, multiplied, of_several))
for each in (FILLED, MULTIPLIED):
    each.register_fake(torch.empty_like)
OF_SEVERAL.register_fake(lambda x, factor: [torch.empty_like(tensor) for tensor in x])
FILLED.register_autograd(lambda ctx, grad: FILLED(grad))


def step(x: Tensor) -> list[Tensor]:
    first, second = OF_SEVERAL([x, x + 1], 3.0)
    x = x.detach().requires_grad_()
    result = FILLED(x)
    (gradient,) = torch.autograd.grad((result * first).sum(), x)
    return [result.detach(), MULTIPLIED(x.detach()) + 0, first, second, gradient]


@pytest.mark.parametrize("way", ["lazy", "captured", "openxla"])
def test_writes_to_views(way: str) -> None:
    calls = [(torch.arange(16.0).view(4, 4) * factor,) for factor in (1, 2, 3)]
    check_calls(step, calls, way)


def test_a_kernel_of_a_device() -> None:
    """A device's registered function is called; that of another device is not."""

    @torch.library.custom_op("custom_operators_test::other", mutates_args=(), device_types="cpu")
    def other(x: Tensor) -> Tensor:
        raise AssertionError("the CPU's")

    assert other.register_kernel("xla", filled) is filled
    x = torch.arange(16.0).view(4, 4)
    assert torch.equal(other(x.to("xla")).cpu(), filled(x))


@torch.library.custom_op("custom_operators_test::scale", mutates_args=("x",))
def scale(x: Tensor, factor: float) -> Tensor:
    x[:1] = 5
    x.mul_(factor)
    return x.sum(0)


@torch.library.custom_op("custom_operators_test::add_host", mutates_args=("x",), device_types="cpu")
def add_host(x: Tensor, y: Tensor) -> None:
    x.numpy()[:] += y.numpy()


scale.register_fake(lambda x, factor: x.new_empty(x.shape[1:]))


def writing_step(x: Tensor, y: Tensor) -> list[Tensor]:
    part, whole = x[1], scale(x, 2.0)
    scale(part, 0.5)  # a view
    column = y.t()[0].clone()
    sums = scale(column, 3.0)
    return [whole, part + 0, column, sums, x * y]


@pytest.mark.parametrize("way", ["lazy", "captured", "openxla"])
def test_writes_to_arguments(way: str) -> None:
    function = run_by(way, writing_step)
    x = torch.arange(12.0).view(3, 4)
    y = x + 1
    on_device = [x.to("xla"), y.to("xla")]
    for _ in range(4):
        found, expected = function(*on_device), writing_step(x, y)
        torch_xla.sync()
        own, right = [*found, *on_device], [*expected, x, y]
        torch.testing.assert_close(own, right, check_device=False, **EXACTLY)
    assert on_device[0]._version > 0


@pytest.mark.parametrize("way", ["lazy", "openxla"])
def test_a_function_that_only_the_host_has(way: str) -> None:
    x, y = torch.arange(12.0).view(3, 4), torch.ones(4)
    on_device = x.to("xla")
    run_by(way, lambda x, y: add_host(x[1], y))(on_device, y.to("xla"))
    add_host(x[1], y)
    assert torch.equal(on_device.cpu(), x)


def test_the_written_argument_of_a_gradient() -> None:
    """As on the CPU, writing to a tensor that backward() needs is an error."""
    errors = []
    for device in ("cpu", "xla"):
        x = torch.ones(2, 3, device=device, requires_grad=True)
        y = x * 2
        z = y.exp()
        scale(z.detach(), 2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            z.sum().backward()
        errors.append(str(error.value).replace("XLAFloatType", "torch.FloatTensor"))
    assert errors[0][:60] == errors[1][:60]
