"""The packer in Python against the kernels' parser in C++."""

import ctypes
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_api import kernels
from torch_xla_ext.registry import registration
from xla_kernels.signature import untyped_payload
from xla_kernels.signature.dtypes import XLA_TYPES
from xla_kernels.signature.schema import ArrayType, Schema, parse_parameters

PROBE = ctypes.CDLL(os.environ["UNTYPED_PAYLOAD_PROBE"])
PROBE.ProbeSchema.restype = ctypes.c_char_p
PROBE.ProbeOptionsSchema.restype = ctypes.c_char_p
SCHEMA = Schema.parse(PROBE.ProbeSchema().decode())
OPTIONS = Schema.parse(PROBE.ProbeOptionsSchema().decode())


def parse(payload: bytes, probe: Callable[..., None] = PROBE.ProbeUntypedPayload) -> str:
    """The result of the kernel's parser: "ok: …" or its error."""
    text = ctypes.create_string_buffer(8192)
    probe(payload, ctypes.c_size_t(len(payload)), text, ctypes.c_size_t(8192))
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
def test_the_kernel_reads_pythons_payload(
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


# By offset in a payload: the new bytes, and the error. The header has 16 bytes; then each array has
# a dtype, a rank and its dimensions, beginning with `table`.
CHANGED = {
    "magic": (0, b"\2", "expected the magic byte 1 but got 2"),
    "version": (1, b"\2", "expected version 1 but got 2"),
    "operands": (2, b"\3", "expected the number of operands to be 4 but got 3"),
    "results": (3, b"\1", "expected the number of results to be 2 but got 1"),
    "parameters": (4, b"\1", "expected the size of the parameters to be 25 but got 1"),
    "schema": (8, b"12345678", "was packed for another version of the kernel; pack it with "),
    "dtype": (16, b"\x63", "operand 0 (table): unknown dtype 99"),
    "rank": (17, b"\x41", "operand 0 (table): expected a rank of at most 64 but got 65"),
    "negative": (18, struct.pack("<q", -1), "operand 0 (table): dimension 0 is negative: -1"),
    "huge": (18, struct.pack("<q", 2**62), "operand 0 (table): 2^63 bytes or more"),
}


@pytest.mark.parametrize(("at", "changed", "text"), CHANGED.values(), ids=CHANGED)
def test_changed_bytes(at: int, changed: bytes, text: str) -> None:
    payload = untyped_payload.pack(SCHEMA, arrays(), GOOD)
    payload = payload[:at] + changed + payload[at + len(changed) :]
    assert parse(payload).startswith("payload: " + text)


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
    "several": (GOOD | {"factor": torch.ones(2)}, TypeError, "factor: expected f64 but got Tensor"),
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


def test_parameters_of_every_type_are_in_the_schema() -> None:
    text = (
        "mode: str, shifts: i64[], flag: bool, range: {low: i32 in [0, 9], unit: str}, "
        "weights: f64[], halves: f32[], steps: i32[]"
    )
    assert OPTIONS.text.endswith(f"\nparams({text})")
    assert [(p.name, p.type) for p in OPTIONS.parameters][:4] == [
        ("mode", "str"),
        ("shifts", "i64[]"),
        ("flag", "bool"),
        ("range", "dict"),
    ]
    low, unit = OPTIONS.parameters[3].fields
    assert (low.name, low.type, low.min, low.max, unit.type) == ("low", "i32", 0, 9, "str")


OPTION_ARRAYS = [ArrayType((3,), torch.float64), ArrayType((9,), torch.uint8)]
OPTION_VALUES = kernels.OPTIONS
names = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=20)
options = st.fixed_dictionaries(
    {
        "mode": names,
        "shifts": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6).map(tuple),
        "flag": st.booleans(),
        "range": st.fixed_dictionaries({"low": st.integers(0, 9), "unit": names}),
        "weights": st.lists(st.floats(allow_nan=False), max_size=6).map(tuple),
        "halves": st.lists(st.floats(width=32, allow_nan=False), max_size=6).map(tuple),
        "steps": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6).map(tuple),
    }
)


@given(options)
def test_the_kernel_reads_text_arrays_and_dicts(values: dict[str, object]) -> None:
    payload = untyped_payload.pack(OPTIONS, OPTION_ARRAYS, values)
    in_order = untyped_payload.parameter_values(OPTIONS, values)
    expected = f"ok: F64[3] U8[9] | {kernels.described(in_order)}"
    assert parse(payload, PROBE.ProbeOptions) == expected
    assert untyped_payload.unpack(OPTIONS, payload).parameters == values


@given(st.integers(0, len(untyped_payload.pack(OPTIONS, OPTION_ARRAYS, OPTION_VALUES)) - 1))
def test_truncated_parameters_of_variable_size(length: int) -> None:
    payload = untyped_payload.pack(OPTIONS, OPTION_ARRAYS, OPTION_VALUES)
    assert parse(payload[:length], PROBE.ProbeOptions).startswith("payload: ")
    # The header has the size of the truncated parameters.
    begin = len(payload) - struct.unpack_from("<I", payload, 4)[0]
    if length >= begin:
        cut = payload[:4] + struct.pack("<I", length - begin) + payload[8:length]
        assert re.fullmatch(r"parameter [\w.]+: truncated", parse(cut, PROBE.ProbeOptions))
        with pytest.raises(ValueError, match="not an untyped payload of this kernel"):
            untyped_payload.unpack(OPTIONS, cut)


def test_bytes_behind_the_parameters() -> None:
    payload = untyped_payload.pack(OPTIONS, OPTION_ARRAYS, OPTION_VALUES)
    (size,) = struct.unpack_from("<I", payload, 4)
    longer = payload[:4] + struct.pack("<I", size + 1) + payload[8:] + b"\0"
    assert parse(longer, PROBE.ProbeOptions) == "payload: 1 bytes follow the parameters"
    assert parse(payload + b"\0", PROBE.ProbeOptions).startswith("payload: 1 bytes follow the end")


def test_limits_in_a_dict_are_checked_by_the_kernel_too() -> None:
    payload = untyped_payload.pack(OPTIONS, OPTION_ARRAYS, OPTION_VALUES)
    low, unit = struct.pack("<i", OPTION_VALUES["range"]["low"]), OPTION_VALUES["range"]["unit"]
    text = struct.pack("<I", len(unit.encode())) + unit.encode()
    changed = payload.replace(low + text, struct.pack("<i", 10) + text)
    assert changed != payload
    expected = "parameter range.low: expected 0 to 9 but got 10"
    assert parse(changed, PROBE.ProbeOptions) == expected


WRONG_OPTIONS = {
    "no str": ({"mode": 3}, TypeError, "parameter mode: expected a str but got int"),
    "bytes": ({"mode": b"a"}, TypeError, "parameter mode: expected a str but got bytes"),
    "surrogate": ({"mode": "\ud800"}, ValueError, "mode: expected a str but got .*not valid text"),
    "no array": ({"shifts": 3}, TypeError, r"shifts: expected i64\[\] but got int"),
    "a str": ({"shifts": "12"}, TypeError, r"shifts: expected i64\[\] but got str"),
    "floats": ({"shifts": [1, 1.0]}, TypeError, r"expected i64\[\] but element 1 is of type float"),
    "bools": ({"weights": [True]}, TypeError, r"expected f64\[\] but element 0 is of type bool"),
    "matrix": ({"weights": np.ones((2, 2))}, TypeError, "but element 0 is of type list"),
    "i32": ({"steps": [0, 2**31]}, ValueError, "steps: expected i32 but got 2147483648, which is"),
    "f32": ({"halves": [1e39]}, ValueError, r"halves: expected f32 but got 1e\+39, which is out"),
    "no dict": ({"range": 3}, TypeError, "range: expected a dict but got int"),
    "missing": ({"range": {"low": 1}}, TypeError, "parameter range.unit is missing"),
    "unknown": (
        {"range": {"low": 1, "unit": "m", "high": 3}},
        TypeError,
        "unknown parameter 'range.high'; range has low, unit",
    ),
    "limits": (
        {"range": {"low": 10, "unit": "m"}},
        ValueError,
        "parameter range.low: expected 0 to 9 but got 10",
    ),
}


@pytest.mark.parametrize(("change", "error", "text"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_wrong_options(change: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match="TestOptions: .*" + text):
        untyped_payload.pack(OPTIONS, OPTION_ARRAYS, OPTION_VALUES | change)


def test_arrays_of_numpy_and_torch() -> None:
    plain = OPTION_VALUES | {"shifts": [1, 2], "weights": (0.5, 2)}
    others = OPTION_VALUES | {"shifts": np.array([1, 2]), "weights": torch.tensor([0.5, 2.0])}
    assert untyped_payload.pack(OPTIONS, OPTION_ARRAYS, plain) == untyped_payload.pack(
        OPTIONS, OPTION_ARRAYS, others
    )


@pytest.mark.parametrize(
    "text", ["a", "a: ", "a: {b: i32", "a: i32}", "a: i32,, b: i32", "a: i32 in [1]", "a: {b}"]
)
def test_texts_that_are_no_parameters(text: str) -> None:
    with pytest.raises(ValueError):
        parse_parameters(text)


def added(dtype: torch.dtype, *shape: int) -> bytes:
    schema = registration.schema("XlaGpuSimpleAdd")
    return untyped_payload.pack(schema, [ArrayType(shape, dtype)] * 3, {})


SEEDS = Path(__file__).parent / "untyped_payload_corpus" / "seeds"
SEED_FILES: dict[str, Callable[[], bytes]] = {
    "TestGather-scalar-rows": lambda: untyped_payload.pack(SCHEMA, arrays(row=()), GOOD),
    "TestGather-optional": lambda: untyped_payload.pack(SCHEMA, arrays(optional=True), GOOD),
    "TestGather-empty": lambda: untyped_payload.pack(SCHEMA, arrays(row=(0, 7, 1, 1)), GOOD),
    "TestGather-bfloat16": lambda: untyped_payload.pack(
        SCHEMA, arrays((2, 3), torch.bfloat16), GOOD
    ),
    "TestOptions": lambda: untyped_payload.pack(OPTIONS, OPTION_ARRAYS, OPTION_VALUES),
    "TestOptions-empty": lambda: untyped_payload.pack(
        OPTIONS,
        OPTION_ARRAYS,
        {"mode": "", "flag": False, "range": {"low": 0, "unit": ""}}
        | dict.fromkeys(("shifts", "weights", "halves", "steps"), ()),
    ),
    "XlaGpuSimpleAdd-scalar": lambda: added(torch.int64),
    "XlaGpuSimpleAdd-vector": lambda: added(torch.float32, 1000),
    "XlaGpuSimpleAdd-matrix": lambda: added(torch.bfloat16, 4, 5),
    "XlaGpuSimpleAdd-empty": lambda: added(torch.float64, 0, 7),
    "XlaGpuSimpleAdd-rank-64": lambda: added(torch.float16, *[1] * 64),
}


@pytest.mark.parametrize("name", SEED_FILES)
def test_seed_of_the_fuzz_target_is_a_current_payload(name: str) -> None:
    """If $UPDATE_SEEDS is set, the seed is written there first."""
    if folder := os.environ.get("UPDATE_SEEDS"):
        Path(folder, f"{name}.bin").write_bytes(SEED_FILES[name]())
    assert (SEEDS / f"{name}.bin").read_bytes() == SEED_FILES[name]()


@pytest.mark.parametrize("payload", [b"", b"\1", b"\2" * 100], ids=repr)
def test_unpack_refuses_other_bytes(payload: bytes) -> None:
    with pytest.raises(ValueError, match="TestGather: not an untyped payload of this kernel"):
        untyped_payload.unpack(SCHEMA, payload)
