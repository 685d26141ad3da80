"""Encode the attributes of FFI calls as the text of an MLIR dictionary, which XLA parses."""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from xla_kernels.signature.schema import Parameter, Schema

# The attribute with which a call lists the optional operands that it omits (ffi_entry.h).
_ABSENT_OPERANDS = "absent_operands"
# The types of a kernel's parameters.
PARAMETER_TYPES = {
    "bool": bool,
    "i32": np.int32,
    "i64": np.int64,
    "f32": np.float32,
    "f64": np.float64,
    "str": str,
}

# Python numbers have 64 bits; NumPy scalars have the width of their type.
_INTEGERS = {np.dtype(f"int{bits}"): f"i{bits}" for bits in (8, 16, 32, 64)} | {
    np.dtype(f"uint{bits}"): f"ui{bits}" for bits in (8, 16, 32, 64)
}
_FLOATS = {np.dtype("float32"): ("f32", "<f", "<I"), np.dtype("float64"): ("f64", "<d", "<Q")}
_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")


# A byte in an MLIR string literal: outside of printable ASCII, `\XX`.
_ESCAPED = [
    chr(byte) if 0x20 <= byte <= 0x7E and byte not in b'"\\' else f"\\{byte:02X}"
    for byte in range(256)
]


@functools.lru_cache(maxsize=256)  # compiled kernels are long, and equal in each layer
def string(data: bytes) -> str:
    """Encode bytes as an MLIR string literal."""
    return f'"{"".join([_ESCAPED[byte] for byte in data])}"'


def _string(name: str, value: str) -> str:
    try:
        return string(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"attribute {name!r}: {value!r} is not valid text") from None


def _float(value: float, dtype: np.dtype) -> str:
    """Return an MLIR literal with exactly this value: with a decimal point, or as bits."""
    _, code, bits = _FLOATS[dtype]
    if not math.isfinite(value):
        (number,) = struct.unpack(bits, struct.pack(code, value))
        return f"0x{number:0{struct.calcsize(bits) * 2}X}"
    digits, exponent, power = repr(float(value)).partition("e")
    return (digits if "." in digits else digits + ".0") + exponent + power


def _numpy(name: str, value: object) -> np.ndarray:
    """Return the value as a numpy value: int as int64, float as float64."""
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return np.asarray(value, np.int64)
        if isinstance(value, Sequence) and not any(isinstance(v, bool) for v in value):
            kind = np.int64 if all(isinstance(v, int) for v in value) else None
            return np.asarray(value, kind)
        return np.asarray(value)
    except (OverflowError, ValueError):
        raise ValueError(f"attribute {name}: {value!r} does not fit into i64") from None


def _value(name: str, value: object) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(name, value)
    if isinstance(value, bytes):
        return string(value)
    if isinstance(value, Mapping):
        return _dictionary(value, f"{name}.")
    array = _numpy(name, value) if value is not None else None
    if array is None or array.ndim > 1 or array.dtype not in [*_INTEGERS, *_FLOATS]:
        raise TypeError(
            f"attribute {name}: expected a bool, int, float, str, bytes, a numpy number, a "
            "sequence or 1-dimensional array of numbers, or a dict, but got one of type "
            f"{type(value).__name__}"
        )
    if array.dtype in _INTEGERS:
        kind, literals = _INTEGERS[array.dtype], [str(int(item)) for item in array.reshape(-1)]
    else:
        kind = _FLOATS[array.dtype][0]
        literals = [_float(float(item), array.dtype) for item in array.reshape(-1)]
    if array.ndim == 0:
        return f"{literals[0]} : {kind}"
    return f"array<{kind}: {', '.join(literals)}>" if literals else f"array<{kind}>"


def encode(attributes: Mapping[str, object]) -> str:
    """Encode the attributes of an FFI call: ``{scale = 3.0 : f64, window = 128 : i64}``.

    Args:
        attributes: values by name: bool (i1), int (i64), float (f64), str, bytes (encoded as a
            string), numpy numbers of other widths (``numpy.int32(3)`` is i32), and sequences or
            1-dimensional arrays of numbers, and dicts of all these.

    Raises:
        TypeError: a value has an unsupported type, or a name is not a str.
        ValueError: an int does not fit into 64 bits, or a str has a lone surrogate.
    """
    return _dictionary(attributes, "")


def _dictionary(attributes: Mapping[str, object], prefix: str) -> str:
    for name in attributes:
        if not isinstance(name, str) or not name:
            raise TypeError(f"an attribute's name must be a str that is not empty, but is {name!r}")
    parts = []
    for name, value in sorted(attributes.items()):
        key = name if _BARE_NAME.fullmatch(name) else _string(name, name)
        parts.append(f"{key} = {_value(prefix + name, value)}")
    return "{" + ", ".join(parts) + "}"


def of_kernel(
    schema: Schema, operands: Sequence[object | None], values: Mapping[str, object]
) -> dict[str, object]:
    """Return the attributes for a call of a kernel that uses torch_xla_ext/kernel.h.

    Args:
        schema: the kernel's schema.
        operands: the call's operands; None for an omitted one.
        values: the parameters' values, which are converted to the declared widths.
    """
    attributes = {p.name: _of_parameter(p, values[p.name]) for p in schema.parameters}
    absent = sum(1 << i for i, operand in enumerate(operands) if operand is None)
    return attributes | ({_ABSENT_OPERANDS: absent} if absent else {})


def _of_parameter(parameter: Parameter, value: object) -> object:
    """Convert a parameter's value to the width that the kernel declares."""
    if parameter.type == "dict":
        return {each.name: _of_parameter(each, value[each.name]) for each in parameter.fields}
    if parameter.is_array:
        return np.array(value, PARAMETER_TYPES[parameter.element])
    return PARAMETER_TYPES[parameter.type](value)
