"""Activations of 16-bit floats are computed in float32 and rounded once, as PyTorch's are."""

from collections.abc import Callable

import pytest
import torch
from testing.as_on_the_cpu import CLOSE, check, with_gradients
from testing.ways import run_by
from torch.nn import functional

from aten_overrides import optimized  # noqa: F401

Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: dict[str, Activation] = {
    name: getattr(functional, name)
    for name in (
        *("celu", "elu", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "logsigmoid", "mish"),
        *("selu", "sigmoid", "silu", "softplus", "tanh"),
    )
} | {
    "gelu of tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "glu": lambda x: functional.glu(x, 0),
}


def value_and_gradient(
    activation: Activation, x: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.detach().requires_grad_()
    value = activation(x)
    return value.detach(), torch.autograd.grad(value, x, grad[: len(value)])[0]


def mean_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return (found.cpu().double() - exact).abs().mean().item()


@pytest.mark.parametrize("way", ["lazy", "openxla"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_rounded_once(name: str, dtype: torch.dtype, way: str) -> None:
    """The upstream kernels round after each operation: 1.2 to 4 times the error."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(4096, generator=generator) * 3 for _ in range(2))
    x, grad = x.to(dtype), grad.to(dtype)
    activation = ACTIVATIONS[name]
    exact = value_and_gradient(activation, x.double(), grad.double())
    found = value_and_gradient(run_by(way, activation), x.to("xla"), grad.to("xla"))
    of_torch = value_and_gradient(activation, x, grad)
    for ours, theirs, wanted in zip(found, of_torch, exact, strict=True):
        assert ours.dtype == dtype
        assert mean_error(ours, wanted) <= 1.05 * mean_error(theirs, wanted)


@pytest.mark.parametrize("name", ["hardsigmoid", "hardswish", "relu6", "hardtanh"])
def test_gradients_where_the_slope_changes(name: str) -> None:
    """In upstream torch_xla some slopes at -3, -1, 1, 3 and 6 are those of the other side."""
    x = torch.tensor([-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0, float("nan")])
    check(with_gradients(getattr(functional, name)), x, **CLOSE)


@pytest.mark.parametrize("eps", [None, 0.0, 0.1, -1.0])
def test_logit_outside_of_its_domain(eps: float | None) -> None:
    """The upstream kernel returns NaN outside of the domain, also for numbers that it clamps."""
    x = torch.tensor([-3.0, -0.0, 0.05, 0.5, 0.97, 1.0, 7.0, float("inf"), float("-inf")])
    check(lambda x: torch.logit(x, eps), x, **CLOSE)


SMALL = [-(10.0**-k) for k in range(1, 16)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "activation",
    [*(functional.elu, functional.selu, functional.celu), lambda x: functional.celu(x, 1e4)],
    ids=str,
)
def test_results_of_small_numbers(activation: Activation, dtype: torch.dtype) -> None:
    """Upstream subtracts 1 from exp, so that they are 0."""
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 2**-8}[dtype]
    check(activation, torch.tensor(SMALL, dtype=dtype), rtol=tolerance)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_float64(approximate: str) -> None:
    check(
        with_gradients(lambda x: functional.gelu(x, approximate=approximate)),
        torch.linspace(-4, 4, 33, dtype=torch.float64),
        rtol=1e-12,
        atol=1e-13,
    )
