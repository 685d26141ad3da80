"""simple_add against torch, on the CPU or, with PJRT_DEVICE=CUDA, on a GPU."""

import re

import pytest
import torch
from testing.simple_add import DTYPES, random
from testing.xla import PLATFORM

from torch_xla_ext.ops import simple_add

FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]


@pytest.mark.parametrize("shape", [(), (3,), (257,), (2, 3, 5, 7), (4, 0), (2**20 + 3,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sum_is_torchs(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    a, b = random(dtype, *shape), random(dtype, *shape)
    result = simple_add(a.to(device), b.to(device)).cpu()
    assert result.dtype == dtype
    assert torch.equal(result, a + b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values(device: torch.device, dtype: torch.dtype) -> None:
    inf, largest = float("inf"), torch.finfo(dtype).max
    values = torch.tensor([0.0, -0.0, inf, -inf, float("nan"), 1e-8, largest], dtype=dtype)
    a, b = values.repeat(7), values.repeat_interleave(7)
    result = simple_add(a.to(device), b.to(device)).cpu()
    torch.testing.assert_close(result, a + b, rtol=0, atol=0, equal_nan=True)
    numbers = ~result.isnan()  # the sign of a NaN is not defined
    assert torch.equal(result.signbit()[numbers], (a + b).signbit()[numbers])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operands_that_are_views(device: torch.device, dtype: torch.dtype) -> None:
    a, b = random(dtype, 64, 24), random(dtype, 24, 64)
    x, y = a.to(device), b.to(device)
    assert torch.equal(simple_add(x.t(), y).cpu(), a.t() + b)
    assert torch.equal(simple_add(x[1:, ::3], x[:-1, ::3]).cpu(), a[1:, ::3] + a[:-1, ::3])
    assert torch.equal(simple_add(x[:1].expand(64, 24), x).cpu(), a[:1] + a)
    assert torch.equal(
        simple_add(x.view(-1)[1:], y.view(-1)[:-1]).cpu(), (a.view(-1)[1:] + b.view(-1)[:-1])
    )


@pytest.mark.skipif(PLATFORM != "CUDA", reason="needs the memory of a GPU")
def test_more_than_2_to_the_31_elements(device: torch.device) -> None:
    a = torch.zeros((1 << 31) + 5, dtype=torch.bfloat16, device=device)
    assert (simple_add(a, a + 1) != 1).sum().cpu().item() == 0


@pytest.mark.parametrize("device", ["cpu", "meta", "xla"])
def test_wrong_arguments(device: str) -> None:
    a = torch.zeros(3, device=device)
    with pytest.raises(TypeError, match=re.escape("operand 1 (b): expected dtype F32 but got S32")):
        simple_add(a, a.int())
    with pytest.raises(ValueError, match=re.escape("(b): expected dimensions [3] but got [1, 3]")):
        simple_add(a, a[None])
