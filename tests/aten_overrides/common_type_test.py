"""Operators of a tensor and a number compute in the type in which PyTorch computes."""

import itertools
import operator
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.as_on_the_cpu import check
from torch.nn import functional

Unary = Callable[[torch.Tensor], torch.Tensor]
Binary = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

FLOATS = [torch.float32, torch.bfloat16, torch.float16]
VALUES = [0.1, 0.2, 0.3, 0.7, 1.3, -0.1, -0.7, -1.3, 0.0, 3.0, float("inf"), float("nan")]
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def compare(cases: dict[str, Unary], x: torch.Tensor, unequal: float = 0) -> None:
    """Compares `cases` of `x` on the device and the CPU; a share `unequal` of numbers may
    differ."""
    on_device = x.to("xla")
    found = {name: case(on_device) for name, case in cases.items()}
    torch_xla.sync()
    for name, case in cases.items():
        is_same = torch.isclose(found[name].cpu(), case(x), rtol=0, atol=0, equal_nan=True)
        assert is_same.logical_not().sum() <= unequal * x.numel(), name


def gradient(function: Unary) -> Unary:
    def of(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().clone().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)[0]

    return of


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_comparison_with_a_number(dtype: torch.dtype) -> None:
    """The upstream kernels compare in float64, where 0.1 is not the float32 0.1."""
    x = torch.tensor(VALUES).to(dtype)
    cases: dict[str, Unary] = {}
    for name, value in itertools.product(COMPARISONS, (0.1, 0.7, -1.3, 3, 0, True, 1e39, 2**24)):
        for suffix in ("", "_"):
            call = operator.methodcaller(name + suffix, value)
            cases[f"{name}{suffix} {value}"] = lambda x, call=call: call(x.clone())
    compare(cases, x)


def test_comparison_of_integers_with_a_float() -> None:
    """PyTorch compares in float32, in which 2**24 + 1 is 2**24."""
    for dtype in (torch.int32, torch.int64):
        x = torch.tensor([2**24 - 1, 2**24, 2**24 + 1], dtype=dtype)
        compare({name: operator.methodcaller(name, 2.0**24) for name in COMPARISONS}, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_float64(dtype: torch.dtype) -> None:
    x = torch.tensor(VALUES).to(dtype).to("xla")
    results = [getattr(x, name)(0.1) for name in COMPARISONS]
    results += [x == torch.tensor(0.1, dtype=torch.float64), torch.isclose(x, x + 1), x.isinf()]
    results += [x.clamp(-0.7, 0.7), x // 0.1, x % 0.1, x - torch.tensor(0.1, dtype=torch.float64)]
    results += [functional.softshrink(x), functional.threshold(x, 0.1, 0.2)]
    results += [gradient(functional.softplus)(x), gradient(functional.hardtanh)(x)]
    assert "f64" not in torch_xla._XLAC._get_xla_tensors_hlo(results)


def test_comparison_in_a_compiled_function() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x == 0.1, 1.0, x) + (x >= 0.7)

    torch._dynamo.reset()
    x = torch.tensor(VALUES)
    found = torch.compile(step, backend="openxla")(x.to("xla"))
    torch.testing.assert_close(found.cpu(), step(x), equal_nan=True)


FUNCTIONS: dict[str, Binary] = {
    name: getattr(torch, name)
    for name in (
        *COMPARISONS,
        *("add", "sub", "rsub", "div", "floor_divide", "fmod", "remainder", "maximum", "minimum"),
    )
} | {
    "divided and truncated": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "clamp": lambda x, y: torch.clamp(x, min=y) if x.dim() else torch.clamp(y, min=x),
}


@pytest.mark.parametrize("is_first", [False, True], ids=["x, number", "number, x"])
@pytest.mark.parametrize("where", ["cpu", "xla"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_tensor_without_dimensions(dtype: torch.dtype, where: str, is_first: bool) -> None:
    """A scalar tensor of a wider type does not change the computation's type; upstream it does."""
    cases: dict[str, Unary] = {}
    wider = [torch.float64] if dtype == torch.float32 else [torch.float64, torch.float32]
    for (name, function), value, other in itertools.product(
        FUNCTIONS.items(), (0.1, 0.7, 1.3), wider
    ):
        number = torch.tensor(value, dtype=other)

        def case(
            x: torch.Tensor, function: Binary = function, number: torch.Tensor = number
        ) -> torch.Tensor:
            operand = number.to(x.device if where == "xla" else "cpu")
            return function(operand, x) if is_first else function(x, operand)

        cases[f"{name} {value} {other}"] = case
    compare(cases, torch.tensor(VALUES).to(dtype))


def test_power_of_two_types_of_16_bits() -> None:
    """The upstream kernel computes in bfloat16."""
    number = torch.tensor(0.1, dtype=torch.bfloat16)
    x = torch.tensor([0.1, 0.3, 1.3, -0.7], dtype=torch.float16)
    result = torch.pow(number.to("xla"), x.to("xla")).cpu()
    torch.testing.assert_close(result, torch.pow(number, x), rtol=1e-3, atol=0)


IN_16_BITS: dict[str, Unary] = {
    "divided": lambda x: x / 0.3,
    "divided and truncated": lambda x: torch.div(x, 0.1, rounding_mode="trunc"),
    "divided and rounded down": lambda x: torch.div(x, 0.3, rounding_mode="floor"),
    "divided by a tensor and truncated": lambda x: torch.div(x, x.flip(0), rounding_mode="trunc"),
    "remainder": lambda x: x % x.flip(0),
    "softshrink": lambda x: functional.softshrink(x, 0.3),
    "threshold": lambda x: functional.threshold(x, 0.3, 7.0),
    "addcmul": lambda x: torch.addcmul(x, x, x.flip(0), value=0.3),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.flip(0), value=0.3),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "lerp by a tensor": lambda x: torch.lerp(x, x.flip(0), x.abs()),
    "log2": lambda x: torch.log2(x.abs()),
    "log10": lambda x: torch.log10(x.abs()),
    "acos": lambda x: torch.acos(x.clamp(-1, 1)),
    "gradient of threshold": gradient(lambda x: functional.threshold(x, 0.3, 7.0)),
    "gradient of hardtanh": gradient(lambda x: functional.hardtanh(x, -0.7, 0.3)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", IN_16_BITS)
def test_16_bits(name: str, dtype: torch.dtype) -> None:
    """PyTorch computes in float32, and rounds neither the number nor intermediate results."""
    x = torch.cat([torch.randn(4096, generator=torch.Generator().manual_seed(0)), torch.ones(32)])
    x[-32:-24] = torch.tensor([0.1, -0.1, 0.3, -0.3, 0.7, -0.7, 1.3, -1.3])
    compare({name: IN_16_BITS[name]}, x.to(dtype), unequal=5e-4)  # XLA fuses products with sums


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [torch.add, torch.sub, torch.rsub])
def test_factors_in_16_bits(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """Results are rounded once, as by PyTorch on CUDA. On the CPU PyTorch rounds the factor,
    too."""
    x, y = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0)).to(dtype)
    for alpha in (0.3, -1.7, 1):
        found = function(x.to("xla"), y.to("xla"), alpha=alpha).cpu()
        # Compilers may fuse the product with the sum; float64 has the exact product.
        factor = torch.tensor(alpha, dtype=torch.float32).item()
        fused = function(x.double(), y.double(), alpha=factor).float().to(dtype)
        a, b = (
            (x.float() * alpha, y.float())
            if function is torch.rsub
            else (x.float(), y.float() * alpha)
        )
        assert ((found == fused) | (found == function(a, b).to(dtype))).all()


def test_gradient_of_softplus_at_the_threshold() -> None:
    """The upstream kernel compares in float64."""
    x = torch.tensor([0.1, 0.2, -0.1])
    of = gradient(lambda x: functional.softplus(x, 1, 0.1))
    torch.testing.assert_close(of(x.to("xla")).cpu(), of(x))


def test_gradient_of_smooth_l1_loss_of_nan() -> None:
    """The gradient of NaN is NaN; the upstream kernel's is a number, which hides the error."""
    x = torch.tensor([0.1, 0.5, -0.5, 2.0, -3.0, float("nan"), float("inf")])
    for beta in (0.5, 1.0):
        of = gradient(lambda x, beta=beta: functional.smooth_l1_loss(x, x.detach() * 0, beta=beta))
        torch.testing.assert_close(of(x.to("xla")).cpu(), of(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_nan_to_num(dtype: torch.dtype) -> None:
    """NaN and infinities are replaced, also by infinities, which the upstream kernel refuses; its
    value for bfloat16's largest number is infinite."""
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 1.5], dtype=dtype)
    cases = [{}, {"nan": 2.0}, {"posinf": 3.0}, {"neginf": -3.0}, {"posinf": 1.0, "neginf": 2.0}]
    infinity, nan = float("inf"), float("nan")
    cases += [{"nan": infinity, "posinf": -infinity}, {"posinf": nan, "neginf": -1e300}]
    compare({str(case): lambda x, case=case: torch.nan_to_num(x, **case) for case in cases}, x)


def test_condition_number_of_a_singular_matrix() -> None:
    check(lambda x: torch.linalg.cond(x, 1), torch.tensor([[1.0, 2.0], [2.0, 4.0]]))


def test_numbers_on_the_cpu() -> None:
    """PyTorch accepts tensors without dimensions on the CPU beside tensors on a device."""
    x, n = torch.tensor([0.5, -2.0, 3.0]), torch.tensor([1, -1, 2, -3])
    compare({"lerp": lambda x: torch.lerp(x, x + 1, torch.tensor(0.3))}, x)
    for value in (2, -2, -3):
        number = torch.tensor(value)
        compare({f"power {value}": lambda n, number=number: torch.pow(n, number)}, n)
        compare({f"{value} to a power": lambda n, number=number: torch.pow(number, n.abs())}, n)
