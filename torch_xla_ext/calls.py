"""custom_call: the readable front of XLA's custom calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch_xla

from torch_xla_ext import attributes as mlir
from torch_xla_ext import descriptor, reference, registration
from torch_xla_ext.schema import ArrayType, Schema

_XLAC = torch_xla._XLAC
_API_VERSIONS = {"untyped": 3, "ffi": 4}
# XLA's platforms by torch_xla's device types.
_PLATFORMS = {"CPU": "Host", "CUDA": "CUDA"}
# The attribute by which a typed call says which optional operands it leaves out (ffi_entry.h).
_ABSENT_OPERANDS = "absent_operands"


def _checked_arrays(target: str, inputs: object, outputs: object) -> list[ArrayType | None]:
    """The types of operands and results; what the C++ side refuses in its own words is left."""
    arrays: list[ArrayType | None] = []
    for name, values in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(values, (list, tuple)):
            raise TypeError(
                f"custom call {target!r}: {name} must be a list or a tuple, but is of type "
                f"{type(values).__name__}"
            )
        for index, value in enumerate(values):
            if value is None and name == "inputs":
                arrays.append(None)
                continue
            if name == "inputs" and not isinstance(value, torch.Tensor):
                raise TypeError(
                    f"custom call {target!r}: inputs[{index}] must be an XLA tensor, but is of "
                    f"type {type(value).__name__}"
                )
            try:
                arrays.append(ArrayType.of(value))
            except TypeError as error:
                raise TypeError(f"custom call {target!r}: {name}[{index}]: {error}") from None
    return arrays


def _payload_of(
    target: str,
    api: str,
    schema: Schema | None,
    arrays: list[ArrayType | None],
    values: Mapping[str, object] | None,
    payload: bytes | str | None,
) -> bytes | str:
    """The HLO's backend_config: a payload, or the text of attributes."""
    if payload is not None:
        if api == "ffi":
            raise TypeError(
                f"custom call {target!r}: a typed call has no payload; give attributes, or "
                "api='untyped'"
            )
        if values is not None:
            raise TypeError(f"custom call {target!r}: give attributes or a payload, not both")
        return payload
    if api == "untyped":
        if schema is not None:
            return descriptor.pack(schema, arrays, values or {})
        if values:
            raise TypeError(
                f"custom call {target!r}: an untyped target takes attributes only if it is a "
                "kernel made with torch_xla_ext/kernel.h; give a payload, or api='ffi'"
            )
        return b""
    if schema is None:
        return mlir.encode(values or {})
    schema.check(arrays)
    encoded = _typed(schema, descriptor.parameter_values(schema, values or {}))
    absent = sum(1 << i for i, array in enumerate(arrays) if array is None)
    return mlir.encode(encoded | ({_ABSENT_OPERANDS: absent} if absent else {}))


def _typed(schema: Schema, values: Mapping[str, object]) -> dict[str, object]:
    """Parameters as numbers of the widths that the kernel declares."""
    import numpy as np

    types = {"bool": bool, "i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}
    return {p.name: types[p.type](values[p.name]) for p in schema.parameters}


def _check_registered(target: str, api: str) -> None:
    device = torch_xla.runtime.device_type()
    platform = _PLATFORMS.get(device)
    if platform is not None and not registration.is_registered(target, platform, api):
        raise ValueError(registration.unknown_target_text(target, platform, api))


def custom_call(
    target: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    *,
    attributes: Mapping[str, object] | None = None,
    payload: bytes | str | None = None,
    api: str = "untyped",
    aliases: Mapping[int, int] | None = None,
    has_side_effect: bool = False,
) -> list[torch.Tensor]:
    """Calls the kernel that is registered as `target`.

    Operands and results are row-major when the kernel runs, however the inputs were made. A kernel
    that was made with torch_xla_ext/kernel.h is called in the same way by either API: its operands,
    results and parameters are checked against its signature first.

    Args:
        target: the name under which the kernel is registered.
        inputs: XLA tensors on one device, at least one; None for an optional operand of a kernel
            made with kernel.h that is left out.
        outputs: what the results are like: each a tensor (a meta tensor will do), another object
            with shape and dtype, or a pair (shape, dtype). At least one.
        attributes: of a kernel made with kernel.h, its parameters; of another typed target, its
            attributes (`torch_xla_ext.attributes.encode` says which values).
        payload: of another untyped target, the bytes that it is handed.
        api: "untyped" (XLA's API version 3) or "ffi" (version 4).
        aliases: {output: input}: results that are written into an operand's buffer. XLA copies the
            operand first if something else needs it.
        has_side_effect: keeps the call although nobody uses its results.

    Returns:
        An XLA tensor for each of `outputs`.

    Raises:
        TypeError, ValueError: at once: a wrong argument, or a target that is not registered.
        RuntimeError: when the results are read, if the kernel reported a failure.
    """
    if api not in _API_VERSIONS:
        raise ValueError(f"custom call {target!r}: api must be 'untyped' or 'ffi', but is {api!r}")
    if not isinstance(target, str):
        raise TypeError(
            f"custom_call: target must be a str, but is of type {type(target).__name__}; the order "
            "is custom_call(target, inputs, outputs)"
        )
    arrays = _checked_arrays(target, inputs, outputs)
    schema = registration.schema(target)
    replaced = reference.replacement(target)
    if replaced is not None:
        return replaced(inputs, outputs, attributes or {})
    _check_registered(target, api)
    if schema is None and None in arrays:
        raise TypeError(
            f"custom call {target!r}: inputs[{arrays.index(None)}] must be an XLA tensor, but is "
            "None: only kernels made with torch_xla_ext/kernel.h have optional operands"
        )
    if schema is not None:
        schema.check_counts(len(inputs), len(outputs))
    config = _payload_of(target, api, schema, arrays, attributes, payload)
    present = [tensor for tensor in inputs if tensor is not None]
    results = arrays[len(inputs) :]
    return _XLAC._xla_row_major_custom_call(
        present,
        target,
        [array.shape for array in results],
        [array.dtype for array in results],
        config,
        _API_VERSIONS[api],
        _present_aliases(target, inputs, aliases),
        has_side_effect,
    )


def _present_aliases(
    target: str, inputs: Sequence[object], aliases: Mapping[int, int] | None
) -> dict[int, int] | None:
    """Aliases by the numbers that operands have once the absent ones are left out."""
    if not isinstance(aliases, Mapping) or all(tensor is not None for tensor in inputs):
        return aliases  # which the C++ side checks
    result = {}
    for output, number in aliases.items():
        if isinstance(number, int) and 0 <= number < len(inputs):
            if inputs[number] is None:
                raise ValueError(
                    f"custom call {target!r}: aliases names input {number}, which is None"
                )
            number -= sum(tensor is None for tensor in inputs[:number])
        else:
            raise ValueError(
                f"custom call {target!r}: aliases names input {number!r}, of {len(inputs)}"
            )
        result[output] = number
    return result
