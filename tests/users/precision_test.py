"""Each product has the precision of torch_xla's setting, else of PyTorch's settings for CUDA."""

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


PRECISION = r" (dot|convolution)\(.*?(?:operand_precision={(\w+),\2}|$)"


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    backends.set_mat_mul_precision("default")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    yield
    backends.set_mat_mul_precision("default")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False  # as testing.fixtures


def precisions_of(texts: list[str]) -> dict[str, set[str]]:
    """The precisions of the products and of the convolutions of programs."""
    found: dict[str, set[str]] = {}
    for opcode, precision in re.findall(PRECISION, "".join(texts), re.MULTILINE):
        found.setdefault(opcode, set()).add(precision or "default")
    return found


@pytest.mark.parametrize("precision", ["high", "highest"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_all_products_have_torch_xlas_precision(name: str, precision: str) -> None:
    backends.set_mat_mul_precision(precision)
    torch.set_float32_matmul_precision("high")
    x, w = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)
    with programs.compiled("before_optimizations") as texts:
        found = [each.detach().cpu() for each in PRODUCTS[name](x.to("xla"), w.to("xla"))]
    assert set().union(*precisions_of(texts).values()) == {precision}
    if precision == "highest":
        expected = [each.detach() for each in PRODUCTS[name](x, w)]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("setting", "product", "convolution"),
    [
        ("as PyTorch begins", "highest", "default"),
        ("high", "default", "default"),
        ("matmul.allow_tf32", "default", "default"),
        ("cudnn.allow_tf32 off", "highest", "highest"),
    ],
)
def test_float32_has_pytorchs_precision(
    setting: str, product: str, convolution: str, dtype: torch.dtype
) -> None:
    if setting == "high":
        torch.set_float32_matmul_precision("high")
    elif setting == "matmul.allow_tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
    elif setting == "cudnn.allow_tf32 off":
        torch.backends.cudnn.allow_tf32 = False
    rows = len(setting)  # others for each, because equal programs are compiled once
    x, w = torch.randn(rows, 3, 4, 8, dtype=dtype), torch.randn(rows, 3, 4, 8, dtype=dtype)
    x, w = x.to("xla"), w.to("xla")
    with programs.compiled("before_optimizations") as texts:
        torch.einsum("...qd,...kd->...qk", x, w).cpu()
        if not dtype.is_complex:
            conv2d(x, w[..., :3]).cpu()
    expected = {"dot": {product}} | ({} if dtype.is_complex else {"convolution": {convolution}})
    if dtype not in (torch.float32, torch.complex64):
        expected = {opcode: {"default"} for opcode in expected}
    assert precisions_of(texts) == expected


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
    for precision in ("high", "highest", "high"):
        torch.set_float32_matmul_precision(precision)
        with programs.compiled("before_optimizations") as texts:
            step(x, w).cpu()
        found.append(["operand_precision={highest,highest}" in text for text in texts])
    assert found == [[False], [True], []]


CONVERSIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "there and back": lambda x: x - x.bfloat16().float(),
    "float16": lambda x: x - x.half().float(),
    "between operations": lambda x: (x.bfloat16() * 3 + 1).float(),
}


@pytest.mark.parametrize("wrap", [lambda f: f, torch.compile(backend="openxla")])
@pytest.mark.parametrize("name", CONVERSIONS)
def test_16_bits_are_rounded(name: str, wrap: Callable[[Callable], Callable]) -> None:
    """XLA:GPU leaves out roundings, unless xla_allow_excess_precision is off."""
    x = torch.randn(300, 5)
    assert torch.equal(wrap(CONVERSIONS[name])(x.to("xla")).cpu(), CONVERSIONS[name](x))
