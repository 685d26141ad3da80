"""Quotients and shifts of integers, which the upstream kernels compute with floats."""

import itertools
from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import check

import torch_xla_ext
from aten_overrides import optimized  # noqa: F401

DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Small integers, the smallest and largest ones, and integers that float32 does not
    represent."""
    ends = torch.iinfo(dtype)
    found = {0, 1, 2, 3, 7, 100, ends.min, ends.min + 1, ends.max - 1, ends.max}
    found |= {-1, -2, -7, -100, 2**24 + 1, 123456789, 2**31 + 1, 2**53 + 1, -(2**53) - 1}
    return torch.tensor([x for x in sorted(found) if ends.min <= x <= ends.max], dtype=dtype)


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of a number and a divisor, except those that crash PyTorch on the CPU."""
    all_pairs = itertools.product(numbers(dtype).tolist(), repeat=2)
    least = torch.iinfo(dtype).min
    kept = [(a, b) for a, b in all_pairs if b != 0 and (a, b) != (least, -1)]
    return tuple(torch.tensor(column, dtype=dtype) for column in zip(*kept, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rounding_mode", ["floor", "trunc"])
def test_quotients(dtype: torch.dtype, rounding_mode: str) -> None:
    a, b = pairs(dtype)
    check(lambda a, b: torch.div(a, b, rounding_mode=rounding_mode), a, b)
    check(lambda a, b: a.clone().div_(b, rounding_mode=rounding_mode), a, b)
    check(lambda a, b: torch.div(a[:, None], b[:5], rounding_mode=rounding_mode), a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quotients_by_numbers(dtype: torch.dtype) -> None:
    for divisor in (1, 3, 7):
        check(lambda a, divisor=divisor: a // divisor, numbers(dtype))
        check(lambda a, divisor=divisor: a // torch.tensor(divisor), numbers(dtype))
        check(lambda a, divisor=divisor: a.clone().floor_divide_(divisor), numbers(dtype))
    positive = numbers(dtype)
    check(lambda a: 100 // a, positive[positive > 0])


def test_quotients_of_two_types() -> None:
    a = torch.tensor([16777217, 2**31 - 1, -7], dtype=torch.int32)
    check(lambda a: a // torch.tensor([2**40, 3, 2], device=a.device), a)
    check(lambda a: a // 2.0, a)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_an_unknown_rounding_mode(dtype: torch.dtype) -> None:
    x = torch.ones(3, dtype=dtype, device="xla")
    with pytest.raises(RuntimeError, match="one of None, 'trunc', or 'floor' but found 'nearest'"):
        torch.div(x, 2, rounding_mode="nearest")


def test_quotients_in_a_captured_step() -> None:
    """The rows of indices into a matrix that has more elements than float32 represents integers."""
    width = 128_256
    places = torch.tensor([0, width - 1, width, 2**24 + 1, 200 * width - 1, 200 * width])

    @torch_xla_ext.capture
    def rows(places: torch.Tensor) -> torch.Tensor:
        return places // width

    on_device = places.to("xla")
    for _ in range(3):
        assert rows(on_device).cpu().tolist() == (places // width).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shifts(dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    by = torch.tensor([0, 1, 3, bits - 1], dtype=dtype)
    check(lambda a, by: a[:, None] >> by, numbers(dtype), by)
    check(lambda a, by: a[:, None] << by, numbers(dtype), by)
    for number in (0, 2, bits - 1, bits):
        check(lambda a, number=number: a >> number, numbers(dtype))
        check(lambda a, number=number: a << number, numbers(dtype))
    check(lambda a: a.clone().__irshift__(1), numbers(dtype))
    check(lambda a: a.clone().__ilshift__(1), numbers(dtype))
    check(lambda a, by: a[:, None] >> by.long(), numbers(dtype), by)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_powers(dtype: torch.dtype) -> None:
    """Powers equal PyTorch's; XLA itself would use only an exponent's last six bits."""
    ends = torch.iinfo(dtype)
    base = numbers(dtype)
    exponents = torch.tensor([0, 1, 5, 63, 64, 65, 97, 127, ends.max - 1, ends.max], dtype=dtype)
    check(lambda a, b: a[:, None] ** b, base, exponents)
    check(lambda a, b: a[:, None] ** b, base, exponents.to(torch.uint8))
    check(lambda b: 3**b, exponents)
    for exponent in (2, 63, 64, 97, ends.max):
        check(lambda a, exponent=exponent: a**exponent, base)


@pytest.mark.parametrize(
    "operator",
    [
        *(torch.add, torch.sub, torch.rsub, torch.mul, torch.pow, torch.fmod),
        *(torch.lt, torch.ge, torch.eq),
    ],
)
def test_signed_and_unsigned_bytes(operator: Callable[..., torch.Tensor]) -> None:
    """The upstream kernels take -1 beside a uint8 for 255."""
    signed = torch.tensor([-128, -7, -1, 0, 1, 7, 127], dtype=torch.int8)
    unsigned = torch.tensor([1, 2, 3, 255, 200, 5, 127], dtype=torch.uint8)
    check(operator, signed, unsigned)
    if operator is not torch.fmod:  # by 0
        check(operator, unsigned, signed)


BY_NUMBERS = {
    name: getattr(torch, name)
    for name in (
        *("add", "bitwise_and", "bitwise_or", "bitwise_xor", "div", "eq", "floor_divide", "fmod"),
        *("ge", "gt", "le", "lt", "mul", "ne", "remainder", "sub"),
    )
}


@pytest.mark.parametrize("name", BY_NUMBERS)
def test_numbers_that_the_dtype_does_not_have(name: str) -> None:
    """PyTorch takes 300 for 44 and -1 for 255 beside uint8, but divides by the numbers."""
    function = BY_NUMBERS[name]
    for dtype, number in ((torch.uint8, -1), (torch.uint8, 300), (torch.int8, 300)):
        x = torch.tensor([0, 1, 44, 50, 100, 127, 255]).to(dtype)
        check(lambda x, number=number: function(x, number), x)
        check(lambda x, number: function(x, number), x, torch.tensor(number))


def test_numbers_of_other_forms_that_the_dtype_does_not_have() -> None:
    x = torch.tensor([0, 1, 44, 255], dtype=torch.uint8)
    check(lambda x: 300 - x, x)
    check(lambda x: 300**x, x)
    check(lambda x: torch.ops.aten.sub.Scalar(x, 300), x)
    check(lambda x: torch._foreach_add([x], 300) + torch._foreach_mul([x], 300), x)


def test_truth_of_numbers_that_the_dtype_does_not_have() -> None:
    x, number = torch.tensor([0, 1, 44, 255], dtype=torch.uint8), torch.tensor(256)
    check(torch.logical_and, x, number)
    check(torch.logical_or, x, number)
    check(torch.logical_xor, x.int(), torch.tensor(2**40))


def test_booleans_to_the_power_of_a_boolean() -> None:
    check(lambda x: torch.stack([x**True, x**False]), torch.tensor([True, False]))


def test_bounds_that_the_dtype_does_not_have() -> None:
    x = torch.tensor([0, 1, 44, 255], dtype=torch.uint8)
    check(lambda x: torch.stack([x.clamp_min(-1), x.clamp_max(-1)]), x)
    targets = torch.tensor([1, 255, 0, 1], dtype=torch.uint8)
    check(torch.nn.functional.hinge_embedding_loss, torch.randn(4), targets, rtol=1e-6, atol=1e-6)
