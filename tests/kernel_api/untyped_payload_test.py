"""The packer in Python against the kernels' parser in C++."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.xla import check_golden

from torch_xla_ext.kernel_schema import untyped_payload
from torch_xla_ext.kernel_schema.dtypes import XLA_TYPES
from torch_xla_ext.kernel_schema.schema import ArrayType, Schema
from torch_xla_ext.targets import registration

PROBE = ctypes.CDLL(os.environ["DESCRIPTOR_PROBE"])
PROBE.ProbeSchema.restype = ctypes.c_char_p
SCHEMA = Schema.parse(PROBE.ProbeSchema().decode())


def parse(payload: bytes) -> str:
    """What the kernel's parser says: "ok: …" or its error."""
    text = ctypes.create_string_buffer(4096)
    PROBE.ProbeDescriptor(payload, ctypes.c_size_t(len(payload)), text, ctypes.c_size_t(4096))
    return text.value.decode()


def test_schema_is_read_as_the_compiler_read_it() -> None:
    assert SCHEMA.target == "TestGather"
    arguments = [
        (a.name, a.optional, a.dtype, tuple(dim.text for dim in a.dims)) for a in SCHEMA.arguments
    ]
    assert arguments == [
        ("table", False, "T", ("rows", "*row")),
        ("index", False, "S32", ("n",)),
        ("scale", True, "F32", ()),
        ("pair", True, "U8", ("2",)),
        ("out", False, "T", ("n", "*row")),
        ("workspace", False, "U8", ("bytes",)),
    ]
    assert SCHEMA.variables == {"T": ("F32", "BF16", "F8E4M3FN")}
    assert [(p.name, p.type, p.min, p.max) for p in SCHEMA.parameters] == [
        ("window", "i64", 1, 4096),
        ("offset", "i32", None, None),
        ("factor", "f64", -2.5, 1e6),
        ("bias", "f32", None, None),
        ("negate", "bool", None, None),
    ]


def test_not_a_schema() -> None:
    with pytest.raises(ValueError, match="not the schema of a kernel"):
        Schema.parse("TestGather")


GOOD = {"window": 7, "offset": -3, "factor": 0.5, "bias": 1.5, "negate": True}


def arrays(
    row: Sequence[int] = (4,), dtype: torch.dtype = torch.float32, optional: bool = False
) -> list[ArrayType | None]:
    return [
        ArrayType((5, *row), dtype),
        ArrayType((3,), torch.int32),
        ArrayType((), torch.float32) if optional else None,
        ArrayType((2,), torch.uint8) if optional else None,
        ArrayType((3, *row), dtype),
        ArrayType((64,), torch.uint8),
    ]


sizes = st.integers(0, 1000)
parameters = st.fixed_dictionaries(
    {
        "window": st.integers(1, 4096),
        "offset": st.integers(-(2**31), 2**31 - 1),
        "factor": st.floats(-2.5, 1e6),
        "bias": st.floats(width=32, allow_nan=False),
        "negate": st.booleans(),
    }
)


def text_of(value: float) -> str:
    return f"{value:.17g}" if isinstance(value, float) else str(int(value))


@given(st.lists(sizes, max_size=5), st.booleans(), parameters)
def test_what_python_packs_the_kernel_reads(
    row: list[int], optional: bool, values: Mapping[str, float]
) -> None:
    given_arrays = arrays(row, optional=optional)
    payload = untyped_payload.pack(SCHEMA, given_arrays, values)
    shown = " ".join("absent" if a is None else str(a) for a in given_arrays)
    assert (
        parse(payload)
        == f"ok: {shown} | {' '.join(text_of(values[p.name]) for p in SCHEMA.parameters)}"
    )
    read = untyped_payload.unpack(SCHEMA, payload)
    assert [*read.operands, *read.results] == given_arrays
    assert read.parameters == values


any_array = st.none() | st.builds(
    ArrayType,
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.int8]),
)


def packed_without_checks(given_arrays: Sequence[ArrayType | None]) -> bytes:
    payload = untyped_payload.pack(SCHEMA, arrays(), GOOD)
    parts = [payload[:16]]
    for array in given_arrays:
        if array is None:
            parts.append(b"\0\0")
        else:
            number, rank = XLA_TYPES[array.dtype][1], len(array.shape)
            parts.append(struct.pack(f"<BB{rank}q", number, rank, *array.shape))
    return b"".join([*parts, payload[-25:]])


near_misses = st.lists(any_array, min_size=6, max_size=6) | st.builds(
    lambda index, array: [*arrays()[:index], array, *arrays()[index + 1 :]],
    st.integers(0, 5),
    any_array,
)


@settings(max_examples=500)
@given(near_misses)
def test_both_sides_find_the_same_fault(given_arrays: list[ArrayType | None]) -> None:
    kernels = parse(packed_without_checks(given_arrays))
    try:
        SCHEMA.check(tuple(given_arrays))
    except (TypeError, ValueError) as error:
        assert str(error) == f"TestGather: {kernels}"
    else:
        assert kernels.startswith("ok: ")


@settings(max_examples=500)
@given(st.binary(max_size=200))
def test_any_bytes_give_an_error(payload: bytes) -> None:
    assert not parse(payload).startswith("ok: ")


@given(st.integers(0, len(untyped_payload.pack(SCHEMA, arrays(), GOOD)) - 1))
def test_truncated(length: int) -> None:
    text = parse(untyped_payload.pack(SCHEMA, arrays(), GOOD)[:length])
    assert text.startswith("payload: truncated" if length else "payload: is empty")


def test_parameters_that_the_kernel_refuses() -> None:
    payload = untyped_payload.pack(SCHEMA, arrays(), GOOD)
    window = payload[:-25] + struct.pack("<q", 4097) + payload[-17:]
    assert parse(window) == "parameter window: expected 1 to 4096 but got 4097"
    factor = payload[:-13] + struct.pack("<d", float("nan")) + payload[-5:]
    assert parse(factor) == "parameter factor: expected -2.5 to 1000000 but got nan"
    assert parse(payload[:-1] + b"\2") == "parameter negate: expected a bool, 0 or 1"


WRONG = {
    "missing": ({}, TypeError, "parameter window is missing"),
    "unknown": (GOOD | {"widow": 1}, TypeError, "unknown parameter 'widow'; the kernel has window"),
    "float for int": (GOOD | {"window": 1.0}, TypeError, "window: expected i64 but got float"),
    "bool for int": (GOOD | {"window": True}, TypeError, "window: expected i64 but got bool"),
    "int for bool": (GOOD | {"negate": 1}, TypeError, "negate: expected a bool but got int"),
    "huge": (GOOD | {"factor": 10**400}, ValueError, "factor: expected f64 but got 1000"),
    "several": (
        GOOD | {"factor": torch.ones(2)},
        TypeError,
        "factor: expected f64 but got Tensor",
    ),
    "str": (GOOD | {"factor": "1"}, TypeError, "factor: expected f64 but got str"),
    "limits": (GOOD | {"window": 0}, ValueError, "window: expected 1 to 4096 but got 0"),
    "nan": (GOOD | {"factor": float("nan")}, ValueError, "expected -2.5 to 1000000.0 but got nan"),
    "i32": (GOOD | {"offset": 2**31}, ValueError, "offset: expected i32 but got 2147483648, which"),
    "f32": (GOOD | {"bias": 1e39}, ValueError, r"bias: expected f32 but got 1e\+39, which is out"),
}


@pytest.mark.parametrize(("values", "error", "text"), WRONG.values(), ids=WRONG)
def test_wrong_parameters(values: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match="TestGather: .*" + text):
        untyped_payload.pack(SCHEMA, arrays(), values)


def test_numbers_of_numpy_and_torch() -> None:
    np = pytest.importorskip("numpy")
    values = GOOD | {"window": np.int16(7), "factor": torch.tensor(0.5), "negate": np.bool_(True)}
    assert untyped_payload.pack(SCHEMA, arrays(), values) == untyped_payload.pack(
        SCHEMA, arrays(), GOOD
    )


def added(dtype: torch.dtype, *shape: int) -> bytes:
    schema = registration.schema("XlaGpuSimpleAdd")
    return untyped_payload.pack(schema, [ArrayType(shape, dtype)] * 3, {})


SEEDS = Path(__file__).parent / "descriptor_corpus" / "seeds"
SEED_FILES: dict[str, Callable[[], bytes]] = {
    "TestGather-scalar-rows": lambda: untyped_payload.pack(SCHEMA, arrays(row=()), GOOD),
    "TestGather-optional": lambda: untyped_payload.pack(SCHEMA, arrays(optional=True), GOOD),
    "TestGather-empty": lambda: untyped_payload.pack(SCHEMA, arrays(row=(0, 7, 1, 1)), GOOD),
    "TestGather-bfloat16": lambda: untyped_payload.pack(
        SCHEMA, arrays((2, 3), torch.bfloat16), GOOD
    ),
    "XlaGpuSimpleAdd-scalar": lambda: added(torch.int64),
    "XlaGpuSimpleAdd-vector": lambda: added(torch.float32, 1000),
    "XlaGpuSimpleAdd-matrix": lambda: added(torch.bfloat16, 4, 5),
    "XlaGpuSimpleAdd-empty": lambda: added(torch.float64, 0, 7),
    "XlaGpuSimpleAdd-rank-64": lambda: added(torch.float16, *[1] * 64),
}


@pytest.mark.parametrize("name", SEED_FILES)
def test_seed_of_the_fuzz_target_is_what_is_packed_now(name: str) -> None:
    check_golden(SEEDS / f"{name}.bin", SEED_FILES[name]())


@pytest.mark.parametrize("payload", [b"", b"\1", b"\2" * 100], ids=repr)
def test_unpack_what_is_no_descriptor(payload: bytes) -> None:
    with pytest.raises(ValueError, match="TestGather: not a descriptor of this kernel"):
        untyped_payload.unpack(SCHEMA, payload)
