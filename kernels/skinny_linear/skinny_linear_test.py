"""skinny_linear and skinny_swiglu against float64, on the CPU or a GPU."""

import pytest
import torch
from torch.nn import functional

from torch_xla_ext.ops import skinny_linear, skinny_swiglu

DTYPES = (torch.float16, torch.bfloat16)
LIMITS = {torch.float16: 1e-3, torch.bfloat16: 6e-3}
# Sizes of the weights. They fill tiles and warps, or parts of them.
ROWS = (1, 3, 8, 9, 16)
SIZES = ((1, 8), (7, 40), (16, 256), (37, 264), (130, 1032), (48, 4096))


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return functional.linear(x.double(), w.double())


def swiglu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = torch.einsum("tk,gpnk->ptgn", x.double(), w.double())
    return functional.silu(gate) * up


def check(result: torch.Tensor, right: torch.Tensor) -> None:
    assert result.shape == right.shape
    difference = (result.cpu().double() - right).norm()
    assert difference <= LIMITS[result.dtype] * right.norm()


def operand(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(*shape) / shape[-1] ** 0.25).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_linear(device: torch.device, dtype: torch.dtype, rows: int) -> None:
    for n, k in SIZES:
        x, w = operand(dtype, rows, k), operand(dtype, n, k)
        check(skinny_linear(x.to(device), w.to(device)), linear(x, w))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_swiglu(device: torch.device, dtype: torch.dtype, rows: int) -> None:
    for groups, (n, k) in enumerate(SIZES, 1):
        x, w = operand(dtype, rows, k), operand(dtype, groups, 2, n, k)
        check(skinny_swiglu(x.to(device), w.to(device)), swiglu(x, w))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slices(device: torch.device, dtype: torch.dtype) -> None:
    x, w = operand(dtype, 12, 24), operand(dtype, 50, 24)
    check(skinny_linear(x.to(device)[3:], w.to(device)[5:]), linear(x[3:], w[5:]))


def test_a_nan_stays_in_its_row_and_column(device: torch.device) -> None:
    x, w = operand(torch.bfloat16, 9, 40), operand(torch.bfloat16, 20, 40)
    x[8, 39] = w[19, 0] = torch.nan
    result = skinny_linear(x.to(device), w.to(device)).cpu()
    assert torch.equal(result.isnan(), linear(x, w).isnan())


def test_large_gates(device: torch.device) -> None:
    """The exponential of a gate of -1000 is infinite, and the result is zero."""
    x, w = torch.ones(1, 8).bfloat16(), torch.ones(1, 2, 2, 8).bfloat16()
    w[0, 0, 0], w[0, 0, 1] = -125, 125
    result = skinny_swiglu(x.to(device), w.to(device)).cpu()
    assert result.flatten().tolist() == [0, 8000]


def test_no_weights_and_no_columns(device: torch.device) -> None:
    empty = skinny_linear(torch.ones(2, 8).half().to(device), torch.ones(0, 8).half().to(device))
    assert empty.cpu().shape == (2, 0)
    zeros = skinny_linear(torch.ones(2, 0).half().to(device), torch.ones(3, 0).half().to(device))
    assert torch.equal(zeros.cpu(), torch.zeros(2, 3).half())


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "dtype", "message"),
    [
        ((17, 8), (4, 8), torch.bfloat16, "rows"),
        ((2, 12), (4, 12), torch.bfloat16, r"8 \* blocks"),
        ((2, 16), (4, 8), torch.bfloat16, "w"),
        ((2, 16), (4, 16), torch.float32, "F16"),
    ],
)
def test_wrong_arguments(
    device: torch.device,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    dtype: torch.dtype,
    message: str,
) -> None:
    x, w = torch.ones(x_shape, dtype=dtype), torch.ones(w_shape, dtype=dtype)
    with pytest.raises((TypeError, ValueError), match=message):
        skinny_linear(x.to(device), w.to(device))
