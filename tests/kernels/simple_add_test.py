"""XlaGpuSimpleAdd: its results against torch, and every error of its payload."""

import struct
from collections.abc import Callable

import pytest
import torch
from testing.xla import XLAC, compilations

from torch_xla_ext.ops.simple_add import pack_descriptor, simple_add

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int32,
    torch.int64,
]
SIZES = [0, 1, 3, 255, 256, 257, 2**20 + 3]


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype.is_floating_point:
        return (torch.randn(shape) * 100).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sum_is_torchs_bit_for_bit(device: torch.device, dtype: torch.dtype, size: int) -> None:
    a, b = random(dtype, size), random(dtype, size)
    assert torch.equal(simple_add(a.to(device), b.to(device)).cpu(), a + b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_integers_wrap_and_floats_overflow_as_torchs(
    device: torch.device, dtype: torch.dtype
) -> None:
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    a = torch.tensor([limits.max, limits.min, limits.max], dtype=dtype)
    b = torch.tensor([limits.max, limits.min, limits.min], dtype=dtype)
    assert torch.equal(simple_add(a.to(device), b.to(device)).cpu(), a + b)


@pytest.mark.parametrize("dtype", [t for t in DTYPES if t.is_floating_point], ids=str)
def test_special_values(device: torch.device, dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-8], dtype=dtype)
    a, b = values.repeat(6), values.repeat_interleave(6)
    result = simple_add(a.to(device), b.to(device)).cpu()
    torch.testing.assert_close(result, a + b, rtol=0, atol=0, equal_nan=True)
    numbers = ~(a + b).isnan()  # the sign of a NaN says nothing
    assert torch.equal(result.signbit()[numbers], (a + b).signbit()[numbers])


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 3, 5, 7), (4, 0, 2)], ids=str)
def test_shapes(device: torch.device, shape: tuple[int, ...]) -> None:
    a, b = random(torch.float32, *shape), random(torch.float32, *shape)
    result = simple_add(a.to(device), b.to(device)).cpu()
    assert result.shape == a.shape
    assert torch.equal(result, a + b)


OPERANDS = {
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[1:, 2:5],
    "sliced_off_alignment": lambda x: x.reshape(-1)[1:],
    "strided": lambda x: x[::2, ::3],
    "expanded": lambda x: x[:1].expand(16, 24),
    "permuted": lambda x: x.reshape(4, 4, 24).permute(1, 2, 0),
    "computed": lambda x: (x @ x.t()).relu(),
}


@pytest.mark.parametrize("view", OPERANDS.values(), ids=OPERANDS)
def test_operands_that_are_views(
    device: torch.device, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    a, b = random(torch.float32, 16, 24), random(torch.float32, 16, 24)
    result = simple_add(view(a.to(device)), view(b.to(device))).cpu()
    torch.testing.assert_close(result, view(a) + view(b), rtol=1e-5, atol=1e-1)


def test_transposed_and_contiguous_operand(device: torch.device) -> None:
    a, b = random(torch.float32, 5, 7), random(torch.float32, 7, 5)
    assert torch.equal(simple_add(a.to(device).t(), b.to(device)).cpu(), a.t() + b)


def test_one_tensor_twice(device: torch.device) -> None:
    a = random(torch.float32, 9)
    x = a.to(device)
    assert torch.equal(simple_add(x, x).cpu(), a + a)


def test_a_chain_of_calls_is_one_program(device: torch.device) -> None:
    a = random(torch.float32, 100)
    x = a.to(device)
    before = compilations()
    result = x
    for _ in range(10):
        result = simple_add(result, x)
    assert torch.equal(result.cpu(), sum([a] * 10, start=a))
    assert compilations() == before + 1


GOOD = pack_descriptor(torch.float32, 3)
PAYLOADS = {
    "empty": (b"", "payload: expected 16 bytes but got 0"),
    "truncated": (GOOD[:-1], "payload: expected 16 bytes but got 15"),
    "oversized": (GOOD + b"\0", "payload: expected 16 bytes but got 17"),
    "magic": (b"\2" + GOOD[1:], "payload: expected the magic byte 1 but got 2"),
    "version": (GOOD[:1] + b"\2" + GOOD[2:], "payload: expected version 1 but got 2"),
    "reserved": (GOOD[:5] + b"\1" + GOOD[6:], "payload: expected reserved bytes to be zero"),
    "dtype": (GOOD[:2] + b"\7" + GOOD[3:], r"S64 \(5\) but got 7"),
    "negative count": (
        GOOD[:8] + struct.pack("<q", -1),
        r"payload: expected a count of 0 to 2\^40 but got -1",
    ),
    "huge count": (
        GOOD[:8] + struct.pack("<q", 2**40 + 1),
        r"payload: expected a count of 0 to 2\^40 but got 1099511627777",
    ),
}


@pytest.mark.parametrize(("payload", "text"), PAYLOADS.values(), ids=PAYLOADS)
def test_broken_payload(device: torch.device, payload: bytes, text: str) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: .*" + text):
        XLAC._xla_gpu_custom_call(
            [x, x], payload, [[3]], [torch.float32], target="XlaGpuSimpleAdd"
        )[0].cpu()


def test_descriptor_is_what_the_header_documents() -> None:
    assert pack_descriptor(torch.bfloat16, 258) == bytes([1, 1, 16, 0, 0, 0, 0, 0, 2, 1] + [0] * 6)
