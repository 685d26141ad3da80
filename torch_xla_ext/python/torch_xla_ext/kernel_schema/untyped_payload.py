"""The payload of untyped calls: packs and parses descriptors.

include/torch_xla_ext/descriptor.h documents the format and has the kernels' parser.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from torch_xla_ext.kernel_schema.dtypes import TORCH_TYPES_BY_NUMBER, XLA_TYPES
from torch_xla_ext.kernel_schema.schema import ArrayType, Parameter, Schema

MAGIC = 1
VERSION = 1
_HEADER = struct.Struct("<BBBBIQ")
_CODES = {"bool": "?", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}


def parameter_values(schema: Schema, attributes: Mapping[str, object]) -> dict[str, float]:
    """Checks a call's parameters: each must be present, of its type and within its limits.

    Args:
        schema: the kernel's.
        attributes: the parameters by name. An int is accepted for a float;
            otherwise the types must match.

    Returns:
        The values in the schema's order.

    Raises:
        TypeError: a parameter is missing, unknown or of another type.
        ValueError: one is out of its limits, or of its type's range.
    """
    known = [parameter.name for parameter in schema.parameters]
    for name in attributes:
        if name not in known:
            have = ", ".join(known) or "none"
            raise TypeError(f"{schema.caller}: unknown parameter {name!r}; the kernel has {have}")
    for name in known:
        if name not in attributes:
            raise TypeError(f"{schema.caller}: parameter {name} is missing")
    return {p.name: _checked(schema.caller, p, attributes[p.name]) for p in schema.parameters}


def _checked(caller: str, parameter: Parameter, value: object) -> float:
    where = f"{caller}: parameter {parameter.name}: expected"
    kind = parameter.type
    try:
        item = value.item() if hasattr(value, "item") else value  # of numpy or a tensor
    except (RuntimeError, ValueError):  # of several numbers
        item = value
    if kind == "bool":
        if not isinstance(item, bool):
            raise TypeError(f"{where} a bool but got {type(value).__name__}")
        return item
    if kind == "str":  # of TVM-FFI functions
        if not isinstance(item, str):
            raise TypeError(f"{where} a str but got {type(value).__name__}")
        return item
    number = (int, float) if kind.startswith("f") else int
    if isinstance(item, bool) or not isinstance(item, number):
        raise TypeError(f"{where} {kind} but got {type(value).__name__}")
    if kind.startswith("f"):
        try:
            item = float(item)
            if kind == "f32" and math.isfinite(item):
                (item,) = struct.unpack("<f", struct.pack("<f", item))
        except OverflowError:
            raise ValueError(f"{where} {kind} but got {value}, which is out of range") from None
    elif not -(1 << (bits := int(kind[1:]) - 1)) <= item < 1 << bits:
        raise ValueError(f"{where} {kind} but got {item}, which is out of range")
    if parameter.min is not None and not parameter.min <= item <= parameter.max:
        raise ValueError(f"{where} {parameter.min} to {parameter.max} but got {item}")
    return item


def pack(
    schema: Schema, arrays: Sequence[ArrayType | None], attributes: Mapping[str, object]
) -> bytes:
    """Packs the descriptor of a call, after the checks that the kernel does, too.

    Args:
        schema: the kernel's.
        arrays: the operands and then the results; None for an operand that is left out.
        attributes: the parameters by name.

    Raises:
        TypeError, ValueError: as of `Schema.check` and `parameter_values`.
    """
    values = parameter_values(schema, attributes)
    schema.check(tuple(arrays), schema.sizes(values))
    return encode(schema, arrays, values)


def encode(
    schema: Schema, arrays: Sequence[ArrayType | None], values: Mapping[str, object]
) -> bytes:
    """As `pack`, for a checked call; `values` is what `parameter_values` returned."""
    return _pack_arrays(schema, tuple(arrays)) + _params(schema).pack(*values.values())


@cache
def _params(schema: Schema) -> struct.Struct:
    """The parameters' layout."""
    return struct.Struct("<" + "".join(_CODES[p.type] for p in schema.parameters))


@lru_cache(maxsize=4096)
def _pack_arrays(schema: Schema, arrays: tuple[ArrayType | None, ...]) -> bytes:
    """The part of a descriptor before the parameters."""
    counts = len(schema.operands), len(schema.results)
    parts = [_HEADER.pack(MAGIC, VERSION, *counts, _params(schema).size, schema.hash)]
    for array in arrays:
        if array is None:
            parts.append(b"\0\0")
        else:
            number, rank = XLA_TYPES[array.dtype][1], len(array.shape)
            parts.append(struct.pack(f"<BB{rank}q", number, rank, *array.shape))
    return b"".join(parts)


@dataclass(frozen=True)
class Descriptor:
    """The content of a descriptor, for people to read."""

    operands: tuple[ArrayType | None, ...]
    results: tuple[ArrayType, ...]
    parameters: dict[str, float]


def unpack(schema: Schema, payload: bytes) -> Descriptor:
    """Reads a descriptor.

    Raises:
        ValueError: it is not one of this schema. The kernel's own error is more exact.
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
        if len(payload) - at != params_size or _params(schema).size != params_size:
            raise ValueError("a wrong size")
        values = _params(schema).unpack_from(payload, at)
    except (struct.error, KeyError, ValueError) as error:
        raise ValueError(f"{schema.target}: not a descriptor of this kernel: {error}") from error
    names = [parameter.name for parameter in schema.parameters]
    return Descriptor(
        tuple(arrays[:num_operands]),
        tuple(arrays[num_operands:]),
        dict(zip(names, values, strict=True)),
    )
