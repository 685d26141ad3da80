"""Pack and parse the payload of untyped calls.

include/torch_xla_ext/untyped_payload.h documents the format, and contains the kernels' parser.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from xla_kernels.signature.dtypes import TORCH_TYPES_BY_NUMBER, XLA_TYPES
from xla_kernels.signature.schema import ArrayType, Parameter, Schema

MAGIC = 1
VERSION = 1
_HEADER = struct.Struct("<BBBBIQ")
_CODES = {"bool": "?", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}


def parameter_values(schema: Schema, attributes: Mapping[str, object]) -> dict[str, object]:
    """Check that each parameter of a call is present, of its type and within its limits.

    Args:
        schema: the kernel's schema.
        attributes: the parameters by name. An int is accepted for a float;
            otherwise the types must match.

    Returns:
        The values in the schema's order: numbers, str, tuples of numbers, and dicts.

    Raises:
        TypeError: a parameter is missing, unknown or has a wrong type.
        ValueError: a parameter is outside its limits, or outside its type's range.
    """
    return _checked_fields(schema.caller, "", schema.parameters, attributes)


def _checked_fields(
    caller: str, prefix: str, parameters: Sequence[Parameter], values: Mapping[str, object]
) -> dict[str, object]:
    known = [parameter.name for parameter in parameters]
    for name in values:
        if name not in known:
            have = ", ".join(known) or "none"
            what = f"{prefix.removesuffix('.')} has" if prefix else "the kernel has"
            raise TypeError(f"{caller}: unknown parameter {prefix + str(name)!r}; {what} {have}")
    for name in known:
        if name not in values:
            raise TypeError(f"{caller}: parameter {prefix}{name} is missing")
    return {p.name: _checked(caller, prefix, p, values[p.name]) for p in parameters}


def _checked(caller: str, prefix: str, parameter: Parameter, value: object) -> object:
    where = f"{caller}: parameter {prefix}{parameter.name}: expected"
    kind = parameter.type
    if kind == "dict":
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} a dict but got {type(value).__name__}")
        inner = f"{prefix}{parameter.name}."
        return _checked_fields(caller, inner, parameter.fields, value)
    if parameter.is_array:
        return _checked_array(where, parameter, value)
    try:
        item = value.item() if hasattr(value, "item") else value  # of numpy or a tensor
    except (RuntimeError, ValueError):  # of several numbers
        item = value
    if kind == "bool":
        if not isinstance(item, bool):
            raise TypeError(f"{where} a bool but got {type(value).__name__}")
        return item
    if kind == "str":
        return _checked_text(where, item)
    number = (int, float) if kind.startswith("f") else int
    if isinstance(item, bool) or not isinstance(item, number):
        raise TypeError(f"{where} {kind} but got {type(value).__name__}")
    item = _converted(where, kind, item)
    if parameter.min is not None and not parameter.min <= item <= parameter.max:
        raise ValueError(f"{where} {parameter.min} to {parameter.max} but got {item}")
    return item


def _checked_text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{where} a str but got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where} a str but got {value!r}, which is not valid text") from None
    return value


def _checked_array(where: str, parameter: Parameter, value: object) -> tuple[float, ...]:
    items = value.tolist() if hasattr(value, "tolist") else value  # of numpy or a tensor
    if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
        raise TypeError(f"{where} {parameter.type} but got {type(value).__name__}")
    kind = parameter.element
    number = (int, float) if kind.startswith("f") else int
    result = []
    for index, item in enumerate(items):
        plain = item.item() if hasattr(item, "item") else item
        if isinstance(plain, bool) or not isinstance(plain, number):
            raise TypeError(
                f"{where} {parameter.type} but element {index} is of type {type(item).__name__}"
            )
        result.append(_converted(where, kind, plain))
    return tuple(result)


def _converted(where: str, kind: str, value: float) -> float:
    """Convert a number to the type `kind`; raise ValueError if it is out of range."""
    if kind.startswith("f"):
        try:
            item = float(value)
            if kind == "f32" and math.isfinite(item):
                (item,) = struct.unpack("<f", struct.pack("<f", item))
        except OverflowError:
            raise ValueError(f"{where} {kind} but got {value}, which is out of range") from None
        return item
    if not -(1 << (bits := int(kind[1:]) - 1)) <= value < 1 << bits:
        raise ValueError(f"{where} {kind} but got {value}, which is out of range")
    return value


def pack(
    schema: Schema, arrays: Sequence[ArrayType | None], attributes: Mapping[str, object]
) -> bytes:
    """Pack a call's untyped payload, after the same checks as in the kernel.

    Args:
        schema: the kernel's schema.
        arrays: the operands, then the results; None for an omitted operand.
        attributes: the parameters by name.

    Raises:
        TypeError, ValueError: as for `Schema.check` and `parameter_values`.
    """
    values = parameter_values(schema, attributes)
    schema.check(tuple(arrays), schema.sizes(values))
    return encode(schema, arrays, values)


def encode(
    schema: Schema, arrays: Sequence[ArrayType | None], values: Mapping[str, object]
) -> bytes:
    """Pack a checked call as `pack` does; `values` is the result of `parameter_values`."""
    fixed = _params(schema)
    if fixed is not None:
        packed = fixed.pack(*values.values())
    else:
        packed = b"".join(_packed(p, values[p.name]) for p in schema.parameters)
    return _pack_arrays(schema, tuple(arrays), len(packed)) + packed


@cache
def _params(schema: Schema) -> struct.Struct | None:
    """Return the struct layout of the parameters, if it does not depend on their values."""
    if any(parameter.type not in _CODES for parameter in schema.parameters):
        return None
    return struct.Struct("<" + "".join(_CODES[p.type] for p in schema.parameters))


def _packed(parameter: Parameter, value: object) -> bytes:
    if parameter.type == "dict":
        return b"".join(_packed(field, value[field.name]) for field in parameter.fields)
    if parameter.type == "str":
        data = value.encode()
        return struct.pack("<I", len(data)) + data
    if parameter.is_array:
        return struct.pack(f"<I{len(value)}{_CODES[parameter.element]}", len(value), *value)
    return struct.pack("<" + _CODES[parameter.type], value)


def _unpacked(parameter: Parameter, payload: bytes, at: int) -> tuple[object, int]:
    """Unpack a parameter; return its value and the position after it."""
    if parameter.type == "dict":
        values = {}
        for field in parameter.fields:
            values[field.name], at = _unpacked(field, payload, at)
        return values, at
    if parameter.type in _CODES:
        layout = struct.Struct("<" + _CODES[parameter.type])
        return layout.unpack_from(payload, at)[0], at + layout.size
    (count,) = struct.unpack_from("<I", payload, at)
    code = "s" if parameter.type == "str" else _CODES[parameter.element]
    if count * struct.calcsize("<" + code) > len(payload) - at - 4:
        raise ValueError("a wrong size")
    layout = struct.Struct(f"<{count}{code}")
    values = layout.unpack_from(payload, at + 4)
    at += 4 + layout.size
    return (values[0].decode() if parameter.type == "str" else values), at


@lru_cache(maxsize=4096)
def _pack_arrays(schema: Schema, arrays: tuple[ArrayType | None, ...], params_size: int) -> bytes:
    """Return the part of an untyped payload that precedes the parameters."""
    counts = len(schema.operands), len(schema.results)
    parts = [_HEADER.pack(MAGIC, VERSION, *counts, params_size, schema.hash)]
    for array in arrays:
        if array is None:
            parts.append(b"\0\0")
        else:
            number, rank = XLA_TYPES[array.dtype][1], len(array.shape)
            parts.append(struct.pack(f"<BB{rank}q", number, rank, *array.shape))
    return b"".join(parts)


@dataclass(frozen=True)
class UntypedPayload:
    """The readable content of an untyped payload."""

    operands: tuple[ArrayType | None, ...]
    results: tuple[ArrayType, ...]
    parameters: dict[str, object]


def unpack(schema: Schema, payload: bytes) -> UntypedPayload:
    """Read an untyped payload.

    Raises:
        ValueError: the payload does not fit this schema. The kernel's own error is more exact.
    """
    try:
        magic, version, num_operands, num_results, params_size, schema_hash = _HEADER.unpack_from(
            payload
        )
        expected = (MAGIC, VERSION, len(schema.operands), len(schema.results), schema.hash)
        if (magic, version, num_operands, num_results, schema_hash) != expected:
            raise ValueError("another format, version or kernel")
        at, arrays = _HEADER.size, []
        for _ in schema.arguments:
            number, rank = struct.unpack_from("<BB", payload, at)
            shape = struct.unpack_from(f"<{rank}q", payload, at + 2)
            arrays.append(ArrayType(shape, TORCH_TYPES_BY_NUMBER[number]) if number else None)
            at += 2 + 8 * rank
        end, values = at + params_size, {}
        for parameter in schema.parameters:
            values[parameter.name], at = _unpacked(parameter, payload, at)
        if not at == end == len(payload):
            raise ValueError("a wrong size")
    except (struct.error, KeyError, ValueError) as error:
        raise ValueError(
            f"{schema.target}: not an untyped payload of this kernel: {error}"
        ) from error
    return UntypedPayload(tuple(arrays[:num_operands]), tuple(arrays[num_operands:]), values)
