"""The order of numbers: each NaN is the largest, whatever its sign, and zeros are equal."""

from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import CLOSE, check, with_gradients

NAN, INF = float("nan"), float("inf")
NUMBERS = [
    [NAN, 5.0, 1.0, -2.0],
    [0.0, -0.0, 0.0, -0.0, -0.0, 1.0],
    [1.0, NAN, -INF, INF, -0.0, 0.0, NAN],
    [NAN] * 4,
    [[1.0, NAN, 0.0, -0.0], [-0.0, 0.0, NAN, 3.0]],
]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sort": lambda x: x.sort().values,
    "descending": lambda x: x.sort(descending=True).values,
    "msort": torch.msort,
    "topk": lambda x: x.topk(3).values,
    "smallest": lambda x: x.topk(3, largest=False).values,
    "kthvalue": lambda x: x.kthvalue(2).values,
    "last": lambda x: x.kthvalue(x.shape[-1]).values,
    "median": lambda x: x.median(-1).values,
    "nanmedian": torch.nanmedian,
    "unique": torch.unique,
    "max": lambda x: x.max(-1).values,
    "min": lambda x: x.amin(-1),
}
QUANTILES = {"quantile": lambda x: x.quantile(0.5), "nanquantile": lambda x: x.nanquantile(0.5)}


def _with_signs(numbers: list, dtype: torch.dtype, sign: int) -> torch.Tensor:
    """A tensor of the numbers, whose NaN have this sign."""
    x = torch.tensor(numbers, dtype=dtype)
    nan = torch.tensor(NAN, dtype=dtype).copysign(torch.tensor(float(sign), dtype=dtype))
    return torch.where(x.isnan(), nan, x)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*VALUES, *QUANTILES])
def test_values(name: str, dtype: torch.dtype, sign: int) -> None:
    if name in QUANTILES and dtype not in (torch.float32, torch.float64):
        pytest.skip("PyTorch has no such quantile")
    for numbers in NUMBERS:
        check((VALUES | QUANTILES)[name], _with_signs(numbers, dtype, sign))


@pytest.mark.parametrize("name", VALUES)
def test_computed_nan(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return VALUES[name](x / x.abs() + x)

    check(function, torch.tensor([0.0, 4.0, -1.0, 2.0]))


@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stable(dtype: torch.dtype, is_descending: bool) -> None:
    def order(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, indices = x.sort(stable=True, descending=is_descending)
        is_negative = values.signbit() & ~values.isnan()  # of zeros, too
        return values, indices, is_negative, x.argsort(stable=True, descending=is_descending)

    for numbers in NUMBERS:
        check(order, _with_signs(numbers, dtype, -1), **CLOSE)


def test_shapes() -> None:
    for x in (torch.tensor(-0.0), torch.empty(0, 3), torch.empty(3, 0)):
        for dim in range(max(x.dim(), 1)):
            check(lambda x, dim=dim: tuple(x.sort(dim=dim, stable=True)), x, **CLOSE)


def test_gradient() -> None:
    function = lambda x: x.sort(stable=True).values.cumsum(-1) + x.topk(5).values  # noqa: E731
    check(with_gradients(lambda x: function(x).square()), torch.randn(3, 5), **CLOSE)


def test_compiled() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x / x.abs() + x
        return *y.sort(stable=True), y.topk(2).values, y.kthvalue(1).values

    check(function, torch.tensor([0.0, 4.0, -1.0, -0.0, 2.0]), way="openxla", **CLOSE)
