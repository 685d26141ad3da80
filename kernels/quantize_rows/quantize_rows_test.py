"""quantize_rows against PyTorch's own conversion, on the CPU or a GPU."""

import pytest
import torch

import torch_xla_ext
from torch_xla_ext.ops import quantize_rows

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LEAST = 1 / (448 * 512)


def expected(x: torch.Tensor, least: float = LEAST) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.float()
    scale = (x.abs().amax(1) / 448).clamp(min=least)
    numbers = (x * scale.reciprocal()[:, None]).clamp(-448, 448)
    return numbers.to(torch.float8_e4m3fn), scale


def check(x: torch.Tensor, device: torch.device, least: float = LEAST) -> None:
    numbers, scale = quantize_rows(x.to(device), least)
    right_numbers, right_scale = expected(x, least)
    assert numbers.dtype == torch.float8_e4m3fn and scale.dtype == torch.float32
    assert torch.equal(scale.cpu(), right_scale)
    assert torch.equal(numbers.cpu().view(torch.uint8), right_numbers.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [1, 2, 7, 8, 31, 256, 2047, 2048, 14336])
def test_rows_of_different_magnitudes(
    device: torch.device, dtype: torch.dtype, columns: int
) -> None:
    sizes = torch.exp2(torch.arange(-12.0, 13))[:, None]  # of rows
    check((torch.randn(25, columns) * sizes).to(dtype), device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_of_rows(device: torch.device, dtype: torch.dtype) -> None:
    for rows in (0, 1, 1000):
        check(torch.randn(rows, 16).to(dtype), device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("begin", [1, 3, 5])
def test_slices_that_are_not_aligned(device: torch.device, dtype: torch.dtype, begin: int) -> None:
    x = torch.randn(64, 24).to(dtype)
    numbers, scale = quantize_rows(x.to(device)[begin:], LEAST)
    right_numbers, right_scale = expected(x[begin:])
    assert torch.equal(scale.cpu(), right_scale)
    assert torch.equal(numbers.cpu().view(torch.uint8), right_numbers.view(torch.uint8))


def test_ties_and_small_numbers(device: torch.device) -> None:
    """The first number makes the scale 1: all others are rounded as they are."""
    every = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halfway = (every[1:] + every[:-1]) / 2
    row = torch.cat([torch.tensor([448.0]), every, halfway, -every, -halfway])
    check(row[None], device)
    check(row[None] / 448, device, least=1.0)


def test_zeros_and_the_least_scale(device: torch.device) -> None:
    x = torch.tensor([[0.0, -0.0, 0.0], [1e-6, -2e-6, 0.0], [4.0, 2.0, 1.0]])
    check(x, device)
    check(x, device, least=0.5)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf")])
def test_special_numbers(device: torch.device, special: float) -> None:
    x = torch.randn(3, 40)
    x[1, 17] = special
    numbers, scale = (result.cpu() for result in quantize_rows(x.to(device), LEAST))
    right_numbers, right_scale = expected(x)
    assert torch.equal(scale[[0, 2]], right_scale[[0, 2]])
    assert torch.equal(scale[1].isnan(), right_scale[1].isnan())
    assert torch.equal(scale[1].nan_to_num(7), right_scale[1].nan_to_num(7))
    assert torch.equal(numbers.float().isnan(), right_numbers.float().isnan())
    assert torch.equal(numbers.float().nan_to_num(7), right_numbers.float().nan_to_num(7))


def test_in_a_captured_product(device: torch.device) -> None:
    """A captured step has one call, whose results are multiplied."""
    x, weight = torch.randn(32, 64).bfloat16(), torch.randn(48, 64).to(torch.float8_e4m3fn)
    weight_scale = torch.rand(1, 48)

    @torch_xla_ext.capture
    def product(x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
        numbers, scale = quantize_rows(x, LEAST)
        return torch._scaled_mm(
            numbers, weight.t(), scale[:, None], weight_scale, out_dtype=torch.bfloat16
        )

    operands = [tensor.to(device) for tensor in (x, weight, weight_scale)]
    numbers, scale = expected(x)
    right = numbers.double() @ weight.double().t() * scale[:, None].double() * weight_scale.double()
    for _ in range(3):
        torch.testing.assert_close(product(*operands).cpu(), right.bfloat16(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("least", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_scale(device: torch.device, least: float) -> None:
    with pytest.raises(ValueError, match="least_scale: expected a finite number above 0"):
        quantize_rows(torch.zeros(2, 2, device=device), least)


def test_wrong_operands(device: torch.device) -> None:
    with pytest.raises(ValueError, match=r"operand 0 \(x\): expected rank 2"):
        quantize_rows(torch.zeros(2, 2, 2, device=device), LEAST)
    with pytest.raises(TypeError, match=r"operand 0 \(x\): expected dtype F16, BF16 or F32"):
        quantize_rows(torch.zeros(2, 2, dtype=torch.int32, device=device), LEAST)
