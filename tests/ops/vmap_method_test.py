"""define_operator(…, vmap_method=): each method gives torch.vmap's results."""

import warnings
from collections.abc import Callable

import pytest
import torch
from testing.xla import custom_call_lines
from torch import Tensor

from torch_xla_ext import define_operator

METHODS = ["sequential", "expand_dims", "broadcast_all"]


@pytest.fixture
def plus(method: str) -> Callable[..., Tensor]:
    """An operator of a kernel whose operands have one shape."""
    return define_operator(
        "vmap_method_test::plus(Tensor a, Tensor b) -> Tensor",
        target="XlaGpuSimpleAdd",
        setup_context=lambda ctx, inputs, output: None,
        backward=lambda ctx, gradient: (gradient, gradient),
        vmap_method=method,
        replace=True,
    )


@pytest.fixture(autouse=True)
def without_warnings() -> None:
    """Makes warnings errors: torch warns when an operator has no rule for vmap."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("on", ["cpu", "xla"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("in_dims", [(0, 0), (1, 0), (2, 1)], ids=str)
def test_batched_arguments(
    plus: Callable[..., Tensor], method: str, in_dims: tuple[int, int], on: str
) -> None:
    a, b = torch.randn(4, 3, 5).to(on), torch.randn(4, 3, 5).to(on)
    a, b = a.movedim(0, in_dims[0]), b.movedim(0, in_dims[1])
    expected = torch.vmap(torch.add, in_dims)(a, b)
    assert torch.equal(torch.vmap(plus, in_dims)(a, b).cpu(), expected.cpu())
    out_dims = torch.vmap(plus, in_dims, out_dims=2)(a, b)
    assert torch.equal(out_dims.cpu(), expected.movedim(0, 2).cpu())


@pytest.mark.parametrize("on", ["cpu", "xla"])
@pytest.mark.parametrize("method", ["sequential", "broadcast_all"])
def test_an_argument_without_a_batch(plus: Callable[..., Tensor], on: str) -> None:
    a, b = torch.randn(4, 3).to(on), torch.randn(3).to(on)
    assert torch.equal(torch.vmap(plus, (0, None))(a, b).cpu(), (a + b).cpu())
    assert torch.equal(torch.vmap(plus, (None, 0))(b, a).cpu(), (a + b).cpu())


@pytest.mark.parametrize("method", ["expand_dims"])
def test_expand_dims_gives_a_dimension_of_1(plus: Callable[..., Tensor]) -> None:
    """This kernel refuses its operand, whose shape the error states."""
    with pytest.raises(ValueError, match=r"expected dimensions \[4, 3\] but got \[1, 3\]"):
        torch.vmap(plus, (0, None))(torch.randn(4, 3), torch.randn(3))
    # A batch of one element is a batch, too.
    a, b = torch.randn(1, 3), torch.randn(3)
    assert torch.equal(torch.vmap(plus, (0, None))(a, b), a + b)


@pytest.mark.parametrize("method", METHODS)
def test_nested_and_differentiated(plus: Callable[..., Tensor]) -> None:
    a, b = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    assert torch.equal(torch.vmap(torch.vmap(plus))(a, b), a + b)
    gradient = torch.vmap(torch.func.grad(lambda a, b: (plus(a, b) ** 2).sum()))(a, b)
    torch.testing.assert_close(gradient, 2 * (a + b))


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch(plus: Callable[..., Tensor]) -> None:
    result = torch.vmap(plus)(torch.randn(0, 3), torch.randn(0, 3))
    assert result.shape == (0, 3)


@pytest.mark.parametrize(
    ("method", "calls"), [("sequential", 4), ("expand_dims", 1), ("broadcast_all", 1)]
)
def test_number_of_calls(plus: Callable[..., Tensor], calls: int) -> None:
    a = torch.randn(4, 3).to("xla")
    assert len(custom_call_lines(torch.vmap(plus)(a, a + 1))) == calls


@pytest.mark.parametrize("method", METHODS)
def test_one_example_is_checked(plus: Callable[..., Tensor]) -> None:
    with pytest.raises(ValueError, match=r"expected dimensions \[3\] but got \[2\]"):
        torch.vmap(plus)(torch.randn(4, 3), torch.randn(4, 2))


def test_wrong_arguments_are_refused() -> None:
    schema = "vmap_method_test::refused(Tensor a, Tensor b) -> Tensor"
    with pytest.raises(ValueError, match="vmap_method must be one of 'sequential', 'expand_dims'"):
        define_operator(schema, target="XlaGpuSimpleAdd", vmap_method="loop")
    with pytest.raises(TypeError, match="pass vmap or vmap_method, not both"):
        define_operator(
            schema, target="XlaGpuSimpleAdd", vmap_method="sequential", vmap=lambda *args: None
        )
    define_operator(schema, target="XlaGpuSimpleAdd")  # nothing is left of them
