"""Operators of two tensors of different dtypes: their common type is PyTorch's."""

import functools
import itertools
from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch.nn import functional

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
]
Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, Function] = {
    name: getattr(torch, name)
    for name in (
        *("add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "pow", "float_power"),
        *("maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign", "logaddexp"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"),
        *("logical_and", "eq", "lt", "gcd", "lcm", "xlogy", "heaviside", "ldexp", "rsub", "outer"),
    )
}
FUNCTIONS |= {
    "where": lambda x, y: torch.where(x == x, x, y),
    "where of a number": lambda x, y: torch.where(y == y, x, 1.5),
    "clamp": lambda x, y: torch.clamp(x, min=y),
    "addcmul": lambda x, y: torch.addcmul(x, x, y),
    # A real tensor takes no complex value; only PyTorch's CPU kernel checks the imaginary part.
    "masked_fill": lambda x, y: x.masked_fill(x == x, y if x.is_complex() else y.real),
    "cat": lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    "power of a number": lambda x, y: 2.5**x + y,
    "mse_loss": functional.mse_loss,
    "smooth_l1_loss": functional.smooth_l1_loss,
    "huber_loss": functional.huber_loss,
}
SHAPES = list(itertools.product([(3,), ()], repeat=2))


@functools.cache  # a copy to the device takes as long as most operators
def _operands(
    one: torch.dtype, other: torch.dtype, device: str
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = torch.tensor([1, 2, 3]).to(one), torch.tensor([2, 1, 2]).to(other)
    pairs = [(x if a else x[0].clone(), y if b else y[0].clone()) for a, b in SHAPES]
    return [(x.to(device), y.to(device)) for x, y in pairs]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_dtypes(name: str) -> None:
    """The dtypes are PyTorch's. No program runs, because a dtype is known before its value."""
    wrong = []
    for one, other in itertools.product(DTYPES, repeat=2):
        pairs = zip(_operands(one, other, "cpu"), _operands(one, other, "xla"), strict=True)
        for (x, y), on_device in pairs:
            try:
                expected = FUNCTIONS[name](x, y)
            except (RuntimeError, NotImplementedError):  # PyTorch refuses them
                continue
            try:
                got = FUNCTIONS[name](*on_device).dtype
            except RuntimeError as error:
                got = str(error).partition("\n")[0]
            if got != expected.dtype and expected.dtype != torch.complex32:
                wrong.append((one, other, x.dim(), y.dim(), got, expected.dtype))
    assert not wrong


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.bool, torch.uint8),
        (torch.int8, torch.int64),
        (torch.float16, torch.bfloat16),
        (torch.int32, torch.float16),
        (torch.float32, torch.float64),
        (torch.float32, torch.complex64),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_values(one: torch.dtype, other: torch.dtype) -> None:
    cases: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for first, second in ((one, other), (other, one)):
        pairs = zip(_operands(first, second, "cpu"), _operands(first, second, "xla"), strict=True)
        for (name, function), ((x, y), on_device) in itertools.product(FUNCTIONS.items(), pairs):
            try:
                expected = function(x, y)
            except (RuntimeError, NotImplementedError):
                continue
            case = f"{name} {first} {tuple(x.shape)} {second} {tuple(y.shape)}"
            cases[case] = expected, function(*on_device)
    torch_xla.sync()
    for case, (expected, found) in cases.items():
        torch.testing.assert_close(found.cpu(), expected, msg=case)


def test_complex_of_16_bits() -> None:
    """The upstream kernel of pow crashes."""
    x, y = torch.ones(3, dtype=torch.float16, device="xla"), torch.tensor(1j).to("xla")
    for function in (torch.pow, FUNCTIONS["where"], torch.add):
        with pytest.raises(RuntimeError, match=r"of Half and ComplexFloat .*|ComplexHalf"):
            function(x, y)


def test_a_concatenation_of_nothing() -> None:
    """A concatenation of empty tensors has the common dtype; upstream returns the first tensor."""
    empty = torch.empty(0, device="xla")
    result = torch.cat([empty.long(), empty, empty.bool()])
    assert (result.dtype, result.shape) == (torch.float32, (0,))
    assert torch.hstack([empty.half(), empty.bfloat16()]).dtype == torch.float32
