"""XlaGpuSimpleAdd: its results against torch, and every error of its payload."""

import struct
from collections.abc import Callable

import pytest
import torch
from testing.simple_add import DTYPES, random
from testing.xla import XLAC, compilations

from torch_xla_ext import ArrayType, custom_call
from torch_xla_ext.ops.simple_add import simple_add
from torch_xla_ext.registry.registration import schema
from torch_xla_ext.signature import untyped_payload

SIZES = [0, 1, 3, 255, 256, 257, 2**20 + 3]


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


SCHEMA = schema("XlaGpuSimpleAdd")
GOOD = untyped_payload.pack(SCHEMA, [ArrayType((3,), torch.float32)] * 3, {})
# In GOOD: the header is 16 bytes; then each array has a dtype, a rank and a dimension.
PAYLOADS = {
    "empty": (b"", "payload: is empty"),
    "truncated header": (GOOD[:15], "payload: truncated"),
    "truncated": (GOOD[:-1], r"payload: truncated at result 0 \(out\)"),
    "oversized": (GOOD + b"\0", "payload: 1 bytes follow the end of the payload"),
    "magic": (b"\2" + GOOD[1:], "payload: expected the magic byte 1 but got 2"),
    "version": (GOOD[:1] + b"\2" + GOOD[2:], "payload: expected version 1 but got 2"),
    "operands": (GOOD[:2] + b"\3" + GOOD[3:], "the number of operands to be 2 but got 3"),
    "results": (GOOD[:3] + b"\2" + GOOD[4:], "the number of results to be 1 but got 2"),
    "parameters": (GOOD[:4] + b"\1" + GOOD[5:], "the size of the parameters to be 0 but got 1"),
    "schema": (
        GOOD[:8] + b"\0" + GOOD[9:],
        "payload: was packed for another version of the kernel",
    ),
    "unknown dtype": (GOOD[:16] + b"\x63" + GOOD[17:], r"operand 0 \(a\): unknown dtype 99"),
    "absent operand": (GOOD[:16] + b"\0\0" + GOOD[26:], r"operand 0 \(a\): is missing"),
    "dtype": (GOOD[:16] + b"\x07" + GOOD[17:], r"operand 0 \(a\): expected dtype .* but got U16"),
    "mixed dtypes": (GOOD[:26] + b"\x04" + GOOD[27:], r"\(b\): expected dtype F32 but got S32"),
    "rank": (GOOD[:17] + b"\x41" + GOOD[18:], "expected a rank of at most 64 but got 65"),
    "negative dimension": (
        GOOD[:18] + struct.pack("<q", -1) + GOOD[26:],
        r"payload: operand 0 \(a\): dimension 0 is negative: -1",
    ),
    "huge": (GOOD[:18] + struct.pack("<q", 2**62) + GOOD[26:], r"\(a\): 2\^63 bytes or more"),
    "shapes": (
        GOOD[:28] + struct.pack("<q", 4) + GOOD[36:],
        r"operand 1 \(b\): expected dimensions \[3\] but got \[4\]; shape is that of operand 0",
    ),
    "too many elements": (
        b"".join([GOOD[:18], *(struct.pack("<q", 2**41) + GOOD[26:28] for _ in range(2))])
        + struct.pack("<q", 2**41),
        r"expected at most 2\^40 elements but got 2199023255552",
    ),
}


@pytest.mark.parametrize(("payload", "text"), PAYLOADS.values(), ids=PAYLOADS)
def test_broken_payload(device: torch.device, payload: bytes, text: str) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: .*" + text):
        XLAC._xla_gpu_custom_call(
            [x, x], payload, [[3]], [torch.float32], target="XlaGpuSimpleAdd"
        )[0].cpu()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("api", ["untyped", "ffi"])
def test_both_apis_give_the_same(device: torch.device, api: str, dtype: torch.dtype) -> None:
    a, b = random(dtype, 5, 7), random(dtype, 7, 5)
    operands = [a.to(device), b.to(device).t()]
    (total,) = custom_call("XlaGpuSimpleAdd", operands, [a], api=api)
    assert torch.equal(total.cpu(), a + b.t())


def test_typed_call_of_wrong_operands_is_refused_by_the_kernel(device: torch.device) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(
        RuntimeError, match=r"XlaGpuSimpleAdd: operand 1 \(b\): expected dtype F32 but got S32"
    ):
        XLAC._xla_custom_call(
            [x, x.int()], "XlaGpuSimpleAdd", [[3]], [torch.float32], False, "{}", 4, {}
        )[0].cpu()


def test_untyped_payload_is_what_the_header_documents() -> None:
    header = bytes([1, 1, 2, 1, 0, 0, 0, 0]) + struct.pack("<Q", SCHEMA.hash)
    array = bytes([11, 1, 3, 0, 0, 0, 0, 0, 0, 0])
    assert header + array * 3 == GOOD
