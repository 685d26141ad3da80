"""Conversions between masks, numbers and small integers, and roots, with NaN and infinities."""

from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import CLOSE, check, with_gradients

NUMBERS = torch.tensor([1.0, float("nan"), float("inf"), float("-inf"), -2.0, 3.0, -0.0, 0.0])
MASK = torch.tensor([True, False, False, False, False, True, True, False])
WAYS = ["lazy", "captured", "openxla"]

PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "by a mask": lambda x, mask: x * mask,
    "by a number": lambda x, mask: mask.to(x.dtype) * x,
    "by a comparison": lambda x, mask: x * (x > 0),
    "in place": lambda x, mask: x.clone().mul_(mask),
    "summed": lambda x, mask: (x * mask).sum(),
    "by an identity": lambda x, mask: x[:3] * torch.eye(3, device=x.device),
    "addcmul": lambda x, mask: torch.addcmul(x, x, mask.to(x.dtype)),
    "einsum": lambda x, mask: torch.einsum("i,i->i", x, mask.to(x.dtype)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]
)
def test_products_with_masks(dtype: torch.dtype, way: str) -> None:
    """XLA selects 0 where the mask is false, and so hides NaN."""

    def step(x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            name: case(x, mask)
            for name, case in PRODUCTS.items()
            if not (dtype.is_complex and name == "by a comparison")
        }

    x = torch.complex(NUMBERS, NUMBERS) if dtype.is_complex else NUMBERS.to(dtype)
    check(step, x, MASK, way=way, **CLOSE)


@pytest.mark.parametrize("function", [torch.amax, torch.amin])
def test_gradient_of_an_extremum_of_nan(function: Callable[..., torch.Tensor]) -> None:
    x = torch.tensor([[1.0, float("nan"), 3.0], [1.0, 2.0, 2.0]])
    check(with_gradients(lambda x: function(x, 1)), x, **CLOSE)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16])
def test_floats_become_small_integers(source: torch.dtype, way: str) -> None:
    """PyTorch wraps numbers, so that -1.0 is 255 in uint8; XLA takes the nearest one."""
    dtypes = (torch.uint8, torch.int8, torch.int16)

    def step(x: torch.Tensor) -> list[torch.Tensor]:
        copies = [torch.zeros_like(x, dtype=dtype).copy_(x) for dtype in dtypes]
        return [x.to(dtype) for dtype in dtypes] + copies

    x = torch.tensor([0, 0.5, -0.5, 1.9, -1.9, 127.5, 128, -129, 255, 256, -1, 32768, -1e6])
    check(step, x.to(source), way=way)


@pytest.mark.parametrize("exponent", [0.5, -0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_roots(dtype: torch.dtype, exponent: float) -> None:
    """PyTorch computes them as sqrt and rsqrt do, so the root of -inf is NaN."""
    x = (NUMBERS if dtype.is_floating_point else torch.arange(5)).to(dtype)
    found, expected = (x.to("xla") ** exponent).cpu(), x**exponent
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert torch.equal(found.signbit()[~found.isnan()], expected.signbit()[~found.isnan()])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", [torch.float32, torch.float64])
def test_small_numbers_become_float16(source: torch.dtype, way: str) -> None:
    """XLA's reduce-precision, which rounds scalars, returns 0 for numbers below 2**-14."""
    numbers = [3.6e-5, -1e-5, 6.1e-5, 4.5e-8, 2**-25, -2.9e-8, 0.0, -0.0, 0.7, 1e6, -float("inf")]

    def step(*scalars: torch.Tensor) -> list[torch.Tensor]:
        ones = torch.ones(3, dtype=torch.float16, device=scalars[0].device)
        products = [ones * x.half() for x in scalars]
        return products + [1 / x for x in products]  # also signs of zeros

    check(step, *torch.tensor(numbers, dtype=source), way=way)
