"""In-place operators: what PyTorch refuses is refused, and symbolic sizes are compared."""

import re
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.as_on_the_cpu import CLOSE, check, with_gradients

UNARY = re.findall(
    r"\w+",
    "acos acosh asin asinh atan atanh ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 "
    "floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt sgn sigmoid sign "
    "silu sin sinc sinh sqrt tan tanh trunc ",
)
COMPARISONS = ("eq", "ge", "gt", "le", "lt", "ne")
Operator = Callable[..., torch.Tensor]


def _binary(name: str) -> Operator:
    return lambda x, y: getattr(x, name + "_")(y)


OF_TWO: dict[str, Operator] = (
    {
        name: _binary(name)
        for name in re.findall(
            r"\w+",
            "add atan2 copysign div floor_divide fmod heaviside hypot igamma igammac mul "
            "nextafter pow remainder sub xlogy",
        )
        + list(COMPARISONS)
    }
    | {
        name: lambda x, y, name=name: getattr((x * 9).int(), name + "_")((y * 9).int())
        for name in ("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_xor", "gcd", "lcm")
    }
    | {
        "addcdiv": lambda x, y: x.addcdiv_(y, y + 2, value=0.5),
        "addcmul": lambda x, y: x.addcmul_(y, y, value=0.5),
        "clamp_max": lambda x, y: x.clamp_max_(y),
        "clamp_min": lambda x, y: x.clamp_min_(y),
        "clamp tensor": lambda x, y: x.clamp_(y, y + 1),
        "div floor": lambda x, y: x.div_(y, rounding_mode="floor"),
        "lerp": lambda x, y: x.lerp_(y, 0.3),
        "lerp back": lambda x, y: x.lerp_(y, 0.7),
        "lerp tensor": lambda x, y: x.lerp_(y, y),
    }
)
OF_NUMBERS: dict[str, Operator] = {
    "clamp": lambda x: x.clamp_(0.2, 0.8),
    "clamp_max": lambda x: x.clamp_max_(0.5),
    "clamp_min": lambda x: x.clamp_min_(0.5),
    "elu": lambda x: torch.nn.functional.elu_(x),
    "gelu": lambda x: torch.ops.aten.gelu_(x),
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu_(x),
    "addmm": lambda x: x.addmm_(x + 1, x * 2),
    "addr": lambda x: x.addr_(x[0] * 1, x[1] * 1),
    "masked_scatter": lambda x: x.masked_scatter_(x[:1] > 0.5, x * 2),
    "polygamma": lambda x: x.polygamma_(2),
    "polygamma of a view": lambda x: x.t()[1:].polygamma_(1),
    "addmv": lambda x: x[0].addmv_(x + 1, x[1] * 2),
    "baddbmm": lambda x: x[None].baddbmm_(x[None] + 1, x[None] * 2),
} | {f"{name} number": lambda x, name=name: getattr(x, name + "_")(0.5) for name in COMPARISONS}


def numbers(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1


def outcome(operator: Operator, *tensors: torch.Tensor) -> torch.Tensor | str:
    """The first tensor after the call, or the first words of the call's error."""
    try:
        operator(*tensors)
    except (RuntimeError, NotImplementedError) as error:
        return " ".join(re.findall("[a-z]+", str(error))[:3])
    return tensors[0].cpu()


def assert_same(operator: Operator, *tensors: torch.Tensor) -> None:
    on_device = [tensor.clone().to(torch_xla.device()) for tensor in tensors]
    want = outcome(operator, *(tensor.clone() for tensor in tensors))
    got = outcome(operator, *on_device)
    if isinstance(want, str):
        assert got == want
    else:
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", UNARY)
def test_of_one(name: str) -> None:
    operator = _of_one(name)
    assert_same(operator, numbers(4, 4) + (1 if name == "acosh" else 0))
    if name not in ("frac", "silu"):  # refused when the program is lowered
        assert_same(operator, torch.arange(1, 5))  # refused, if the result has fractions


def _of_one(name: str) -> Operator:
    return lambda x: getattr(torch.ops.aten, name + "_")(x)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_of_numbers(name: str) -> None:
    assert_same(OF_NUMBERS[name], numbers(4, 4))


@pytest.mark.parametrize("name", OF_TWO)
def test_of_two(name: str) -> None:
    operator = OF_TWO[name]
    assert_same(operator, numbers(4, 4), numbers(4, 4))
    assert_same(operator, numbers(4, 4), numbers(4))
    assert_same(operator, numbers(4), numbers(4, 4))  # the result would be larger
    assert_same(operator, numbers(4), numbers(3))


@pytest.mark.parametrize("name", [*OF_TWO, *OF_NUMBERS])
def test_symbolic_sizes(name: str) -> None:
    torch._dynamo.reset()
    is_of_two = name in OF_TWO
    operator = OF_TWO[name] if is_of_two else OF_NUMBERS[name]

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        result = tensors[0] * 1
        operator(result, *tensors[1:])
        return result

    compiled = torch.compile(function, backend="aot_eager", dynamic=True, fullgraph=True)
    for size in (4, 6):
        tensors = [numbers(size, size)] * (2 if is_of_two else 1)
        torch.testing.assert_close(compiled(*tensors), function(*tensors))
    if name in ("add", "mul", "addcmul", "lerp"):  # PyTorch lets the others grow
        with pytest.raises(RuntimeError):
            compiled(numbers(6), numbers(6, 6))


SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transpose_": lambda v: v.transpose_(0, 1),
    "t_": lambda v: v.t_(),
    "unsqueeze_": lambda v: v.unsqueeze_(0),
    "squeeze_": lambda v: v[:, :1].squeeze_(1),
    "as_strided_": lambda v: v.as_strided_((2,), (1,)),
    "two": lambda v: v.t_().unsqueeze_(1),
}


@pytest.mark.parametrize("is_base", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_gradients_of_a_write_to_a_view_that_changed_its_shape(name: str, is_base: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        base = x * 1
        view = SHAPES[name](base[:, 1:3])
        (base if is_base else view[0]).mul_(3)
        weights = torch.arange(view.numel(), dtype=view.dtype, device=view.device)
        return (view.sin() * weights.view(view.shape)).sum() + base.cos().sum()

    check(with_gradients(function), torch.arange(12.0).view(3, 4) / 9, **CLOSE)


def test_gradients_of_a_spectrogram_that_is_written_to() -> None:
    """torch.stft transposes its result in place."""

    def function(x: torch.Tensor) -> torch.Tensor:
        spectrogram = torch.stft(x, 4, 2, window=torch.ones_like(x[:4]), return_complex=True)
        return (1 - spectrogram.mul_(0.5)).abs()

    check(with_gradients(function), torch.arange(12.0).sin(), rtol=1e-4, atol=1e-4)
