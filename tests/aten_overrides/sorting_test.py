"""The order of numbers: each NaN is the largest, whatever its sign, and zeros are equal."""

from collections.abc import Callable

import pytest
import torch
import torch_xla  # noqa: F401

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


def _check(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> None:
    torch.testing.assert_close(function(x.to("xla")).cpu(), function(x), equal_nan=True)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*VALUES, *QUANTILES])
def test_values(name: str, dtype: torch.dtype, sign: int) -> None:
    if name in QUANTILES and dtype not in (torch.float32, torch.float64):
        pytest.skip("PyTorch has no such quantile")
    for numbers in NUMBERS:
        _check((VALUES | QUANTILES)[name], _with_signs(numbers, dtype, sign))


@pytest.mark.parametrize("name", VALUES)
def test_computed_nan(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return VALUES[name](x / x.abs() + x)

    _check(function, torch.tensor([0.0, 4.0, -1.0, 2.0]))


@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_stable(dtype: torch.dtype, is_descending: bool) -> None:
    for numbers in NUMBERS:
        x = _with_signs(numbers, dtype, -1)
        expected = x.sort(stable=True, descending=is_descending)
        result = x.to("xla").sort(stable=True, descending=is_descending)
        torch.testing.assert_close(result.indices.cpu(), expected.indices)
        torch.testing.assert_close(result.values.cpu(), expected.values, equal_nan=True)
        is_number = ~expected.values.isnan()
        torch.testing.assert_close(
            result.values.cpu().signbit() & is_number, expected.values.signbit() & is_number
        )
        order = x.to("xla").argsort(stable=True, descending=is_descending)
        torch.testing.assert_close(order.cpu(), expected.indices)


def test_shapes() -> None:
    for x in (torch.tensor(-0.0), torch.empty(0, 3), torch.empty(3, 0)):
        for dim in range(max(x.dim(), 1)):
            result = x.to("xla").sort(dim=dim, stable=True)
            expected = x.sort(dim=dim, stable=True)
            torch.testing.assert_close(result.values.cpu(), expected.values)
            torch.testing.assert_close(result.indices.cpu(), expected.indices)


def test_gradient() -> None:
    x = torch.randn(3, 5)
    expected, result = x.clone().requires_grad_(), x.to("xla").requires_grad_()
    for tensor in (expected, result):
        (
            tensor.sort(stable=True).values.cumsum(-1) + tensor.topk(5).values
        ).square().sum().backward()
    torch.testing.assert_close(result.grad.cpu(), expected.grad)


def test_compiled() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x / x.abs() + x
        return *y.sort(stable=True), y.topk(2).values, y.kthvalue(1).values

    x = torch.tensor([0.0, 4.0, -1.0, -0.0, 2.0])
    for result, expected in zip(
        torch.compile(function, backend="openxla")(x.to("xla")), function(x), strict=True
    ):
        torch.testing.assert_close(result.cpu(), expected, equal_nan=True)
