"""torch_xla.backends.set_mat_mul_precision for all products, not only for those of matmul."""

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from testing import programs
from torch.nn.functional import conv2d, conv_transpose2d
from torch_xla import backends

import torch_xla_ext


def gradients(
    function: Callable[..., torch.Tensor], *operands: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    for operand in operands:
        operand.requires_grad_()
    return torch.autograd.grad(function(*operands).square().sum(), operands)


PRODUCTS = {
    "matmul": lambda x, w: [x @ w.mT],
    "einsum": lambda x, w: [torch.einsum("...qd,...kd->...qk", x, w)],
    "gradients of einsum": lambda x, w: gradients(
        lambda a, b: torch.einsum("...qd,...kd->...qk", a, b), x, w
    ),
    "gradients of a convolution": lambda x, w: gradients(conv2d, x, w[..., :3]),
    "gradients of a transposed convolution": lambda x, w: gradients(
        conv_transpose2d, x.transpose(0, 1), w[..., :3]
    ),
}


@pytest.fixture(params=["default", "high", "highest"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    backends.set_mat_mul_precision(request.param)
    yield request.param
    backends.set_mat_mul_precision("highest")  # as testing.fixtures


@pytest.mark.parametrize("name", PRODUCTS)
def test_all_products_have_the_precision_that_is_set(name: str, precision: str) -> None:
    x, w = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)
    with programs.compiled("before_optimizations") as texts:
        found = [each.detach().cpu() for each in PRODUCTS[name](x.to("xla"), w.to("xla"))]
    products = re.findall(r" (?:dot|convolution)\(.*", "".join(texts))
    assert products
    for product in products:
        given = re.search(r"operand_precision={(\w+),(\w+)}", product)
        assert (given.groups() if given else ("default",) * 2) == (precision, precision)
    if precision == "highest":
        expected = [each.detach() for each in PRODUCTS[name](x, w)]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("compiled", "rows"),  # other rows, because equal programs are compiled once
    [(torch.compile(backend="openxla"), 5), (torch_xla_ext.capture, 6)],
    ids=["openxla", "capture"],
)
def test_another_precision_is_another_program(
    compiled: Callable[[Callable], Callable], rows: int
) -> None:
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    step = compiled(product)
    x, w = torch.randn(rows, 7).to("xla"), torch.randn(7, 3).to("xla")
    found = []
    for precision in ("default", "highest", "default"):
        backends.set_mat_mul_precision(precision)
        with programs.compiled("before_optimizations") as texts:
            step(x, w).cpu()
        found.append(["operand_precision={highest,highest}" in text for text in texts])
    backends.set_mat_mul_precision("highest")  # as testing.fixtures
    assert found == [[False], [True], []]
