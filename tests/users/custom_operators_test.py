"""Operators by torch.library.custom_op whose functions write to tensors that they have made."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
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
    function = run_by(way, step)
    for factor in (1, 2, 3):
        x = torch.arange(16.0).view(4, 4) * factor
        found, expected = function(x.to("xla")), step(x)
        torch_xla.sync()
        for value, wanted in zip(found, expected, strict=True):
            assert torch.equal(value.cpu(), wanted)


def test_a_kernel_of_a_device() -> None:
    """The function stays what was registered, and that of another device is not called."""

    @torch.library.custom_op("custom_operators_test::other", mutates_args=(), device_types="cpu")
    def other(x: Tensor) -> Tensor:
        raise AssertionError("the CPU's")

    assert other.register_kernel("xla", filled) is filled
    x = torch.arange(16.0).view(4, 4)
    assert torch.equal(other(x.to("xla")).cpu(), filled(x))
