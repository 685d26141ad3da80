"""simple_add on a GPU, against torch on the CPU."""

import os

import pytest
import torch
import torch_xla
from testing.simple_add import DTYPES, random
from testing.xla import custom_call_lines

from torch_xla_ext.ops import simple_add

pytestmark = pytest.mark.skipif(os.environ.get("PJRT_DEVICE") != "CUDA", reason="needs a GPU")

SIZES = [0, 1, 2, 3, 7, 255, 256, 257, 1023, 4097, (1 << 20) + 3]


def check(a: torch.Tensor, b: torch.Tensor, device: torch.device) -> None:
    result = simple_add(a.to(device), b.to(device)).cpu()
    assert result.dtype == a.dtype
    assert torch.equal(result, a + b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_dtype_and_size(device: torch.device, dtype: torch.dtype, size: int) -> None:
    check(random(dtype, size), random(dtype, size), device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("begin", [1, 2, 3, 5, 8])
def test_slices_that_are_not_aligned(device: torch.device, dtype: torch.dtype, begin: int) -> None:
    a, b = random(dtype, 1000), random(dtype, 1000)
    result = simple_add(a.to(device)[begin:], b.to(device)[:-begin]).cpu()
    assert torch.equal(result, a[begin:] + b[:-begin])


@pytest.mark.parametrize("shape", [[], [1], [3, 5], [2, 3, 4, 5], [0, 4], [1, 1, 7]], ids=str)
def test_shapes(device: torch.device, shape: tuple[int, ...]) -> None:
    check(random(torch.float32, *shape), random(torch.float32, *shape), device)


def test_transposed_and_strided_operands(device: torch.device) -> None:
    a, b = torch.randn(64, 128), torch.randn(128, 64)
    x, y = a.to(device), b.to(device)
    assert torch.equal(simple_add(x.t(), y).cpu(), a.t() + b)
    assert torch.equal(simple_add(x.t() * 2, y + 1).cpu(), a.t() * 2 + (b + 1))
    assert torch.equal(simple_add(x[::2, 1::3], x[1::2, 1::3]).cpu(), a[::2, 1::3] + a[1::2, 1::3])
    assert torch.equal(simple_add(x[:1].expand(64, 128), x).cpu(), a[:1] + a)


def test_special_values(device: torch.device) -> None:
    values = torch.tensor([float("inf"), -float("inf"), float("nan"), -0.0, 1e-45, 3.4e38])
    a, b = values.repeat(6), values.repeat_interleave(6)
    result = simple_add(a.to(device), b.to(device)).cpu()
    assert torch.equal(result.isnan(), (a + b).isnan())
    assert torch.equal(result.nan_to_num(7), (a + b).nan_to_num(7))


def test_more_than_4_gib(device: torch.device) -> None:
    """64-bit indexing: 2^31 + 5 elements of 2 bytes."""
    count = (1 << 31) + 5
    a = torch.zeros(count, dtype=torch.bfloat16, device=device)
    b = torch.ones(count, dtype=torch.bfloat16, device=device)
    result = simple_add(a, b)
    torch_xla.sync()
    assert result[-1].cpu().item() == 1
    assert result[1 << 31].cpu().item() == 1
    assert (result != 1).sum().cpu().item() == 0


def test_the_hlo_names_the_target(device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    (line,) = custom_call_lines(simple_add(x, x))
    assert 'custom_call_target="XlaGpuSimpleAdd"' in line
