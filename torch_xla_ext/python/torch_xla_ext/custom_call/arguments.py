"""Check the arguments of custom_call, and convert them for C++."""

import dataclasses
from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
import torch_xla
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor

from torch_xla_ext import sharding
from torch_xla_ext.registry import registration
from torch_xla_ext.registry.platforms import APIS, platform_of
from torch_xla_ext.sharding import rule as rules
from xla_kernels import kernel_symbols
from xla_kernels.signature import ffi_attributes, untyped_payload
from xla_kernels.signature.schema import ArrayType, Schema
from xla_kernels.traits import NONE, Traits

# Targets and APIs that are known to be registered; a registration is never undone.
_known: set[tuple[str, str]] = set()


@dataclasses.dataclass(frozen=True)
class Request:
    """A requested call.

    Attributes:
        inputs: the result of `tensors_of`, or meta tensors.
        target, outputs, attributes, payload, api, aliases, has_side_effect, traits: as of
            custom_call.
        is_checked: whether the arrays and parameters have been checked against the kernel's
            signature. Then `attributes` are what parameter_values returned.
    """

    target: str
    inputs: Sequence[torch.Tensor | None]
    outputs: Sequence[object]
    attributes: Mapping[str, object] | None = None
    payload: bytes | str | None = None
    api: str | None = None
    aliases: Mapping[int, int] | None = None
    has_side_effect: bool = False
    traits: Traits = NONE
    is_checked: bool = False


class Arguments(NamedTuple):
    """The arguments of _xla_gpu_custom_call, in its order."""

    operands: Sequence[torch.Tensor]
    payload: bytes | str
    output_shapes: list[tuple[int, ...]]
    output_dtypes: list[torch.dtype]
    target: str
    aliases: Mapping[int, int] | None
    api_version: int
    has_side_effect: bool
    partition: str
    result_layouts: Mapping[int, Sequence[int]]
    num_hidden_results: int
    payload_is_backend_config: bool
    runs_first_alone: bool
    operand_layouts: Mapping[int, Sequence[int]]


def tensors_of(target: str, inputs: object) -> list[torch.Tensor | None]:
    """Return the inputs, with each XLAShardedTensor replaced by the tensor that it wraps."""
    _check_list(target, "inputs", inputs)
    tensors = []
    for index, value in enumerate(inputs):
        if type(value) is torch.Tensor:
            pass  # the usual case
        elif isinstance(value, XLAShardedTensor):
            value = value.global_tensor
        elif value is not None and not isinstance(value, torch.Tensor):
            raise TypeError(
                f"custom call {target!r}: inputs[{index}] must be an XLA tensor, but is of type "
                f"{type(value).__name__}"
            )
        tensors.append(value)
    return tensors


def rule_of(
    caller: str,
    sharding_rule: str | None,
    tensors: Sequence[torch.Tensor | None],
    results: Sequence[ArrayType],
    aliases: Mapping[int, int] | None,
) -> sharding.Rule | None:
    """Return a call's sharding rule, after checking it against the call's arrays.

    Args:
        caller: prefix of error messages.
        results: the results that are returned as tensors.
    """
    if sharding_rule is None:
        return None
    try:
        rule = rules.parse(sharding_rule)
        ranks = [(f"inputs[{i}]", None if t is None else t.dim()) for i, t in enumerate(tensors)]
        types = [(f"outputs[{i}]", len(each.shape)) for i, each in enumerate(results)]
        rules.check_ranks(rule, ranks, types)
        rules.check_aliases(rule, aliases if isinstance(aliases, Mapping) else {})
    except (TypeError, ValueError) as error:
        raise type(error)(f"{caller}: {error}") from None
    return rule


def partitioned(arguments: Arguments, call: sharding.PartitionedCall | None) -> Arguments:
    """Return the arguments for a program that runs on several devices.

    Args:
        call: None in a program for one device, and in regions of manual sharding.

    Raises:
        ValueError: the arrays' sizes do not fit the sharding rule.
    """
    if call is None:
        return arguments
    identity = (
        arguments.target,
        arguments.api_version,
        arguments.payload,
        [operand.dtype for operand in arguments.operands],
        arguments.output_dtypes,
        [tuple(shape) for shape in arguments.output_shapes],
    )
    name = sharding.add(call, identity)
    if not name:
        return arguments
    count = len(call.results)
    return arguments._replace(
        output_shapes=arguments.output_shapes[:count],
        output_dtypes=arguments.output_dtypes[:count],
        num_hidden_results=0,
        partition=name,
    )


def checked(request: Request) -> Arguments:
    """Check what the C++ code cannot check, and return the arguments for it.

    Raises:
        TypeError, ValueError: as custom_call.
    """
    target, tensors, payload, api = request.target, request.inputs, request.payload, request.api
    if api is None:
        api = "untyped" if payload is not None else registration.default_api(target)
    elif not isinstance(api, str) or api not in APIS:
        raise ValueError(
            f"custom call {target!r}: api must be 'untyped', 'ffi' or None, but is {api!r}"
        )
    if not isinstance(request.has_side_effect, bool):
        raise TypeError(
            f"custom call {target!r}: has_side_effect must be a bool, but is of type "
            f"{type(request.has_side_effect).__name__}"
        )
    types = result_types(target, request.outputs)
    traits = request.traits
    if not traits.built_in or platform_of(torch_xla.runtime.device_type()) != "CUDA":
        _check_registered(target, api, request.api if payload is None else api)
    present = [tensor for tensor in tensors if tensor is not None]
    schema = registration.schema(target, api)
    if schema is not None:
        if not request.is_checked:
            schema.check_counts(len(tensors), len(types))
    elif len(present) != len(tensors):
        raise TypeError(
            f"custom call {target!r}: inputs[{tensors.index(None)}] must be an XLA tensor, but is "
            "None: only kernels made with torch_xla_ext/kernel.h have optional operands"
        )
    arrays = [t if t is None else ArrayType(t.shape, t.dtype) for t in tensors] + types
    try:
        handed = _payload_of(request, api, schema, arrays)
    except TypeError:
        _refuse_dynamic(target, arrays)  # a symbolic size cannot be hashed
        raise
    operand_layouts, result_layouts = traits.operand_layouts, traits.result_layouts
    if schema is not None and schema.has_layouts:
        operand_layouts = {**operand_layouts, **schema.operand_layouts(tensors)}
        result_layouts = {**result_layouts, **schema.result_layouts}
    return Arguments(
        present,
        handed,
        [array.shape for array in types],
        [array.dtype for array in types],
        target,
        _present_aliases(target, tensors, request.aliases),
        APIS[api].call_version,
        request.has_side_effect,
        "",
        result_layouts,
        traits.num_hidden_results,
        traits.built_in,
        traits.runs_first_alone,
        operand_layouts,
    )


def result_types(target: str, outputs: object) -> list[ArrayType]:
    _check_list(target, "outputs", outputs)
    types = []
    for index, value in enumerate(outputs):
        try:
            types.append(ArrayType.of(value))
        except (TypeError, ValueError) as error:
            raise type(error)(f"custom call {target!r}: outputs[{index}]: {error}") from None
    return types


def _check_list(target: str, name: str, values: object) -> None:
    if not isinstance(values, (list, tuple)):
        raise TypeError(
            f"custom call {target!r}: {name} must be a list or a tuple, but is of type "
            f"{type(values).__name__}"
        )


def _check_registered(target: str, api: str, given_api: str | None) -> None:
    if (target, api) in _known:
        return
    platform = platform_of(torch_xla.runtime.device_type())
    if platform is not None and not registration.is_registered(target, platform, api):
        raise ValueError(_unknown_target_text(target, platform, given_api))
    _known.add((target, api))


def _unknown_target_text(name: str, platform: str, api: str | None) -> str:
    """Return the error message for an unregistered target: similar names, and the remedy.

    Args:
        api: None for a call that may use either API.
    """
    wanted = f"{platform!r}" + (f" and api={api!r}" if api else "")
    text = f"custom call {name!r}: no such target is registered for {wanted}"
    others = [t for t in registration.registered_targets() if t.name == name]
    if others:
        have = ", ".join(f"{t.platform!r} and api={t.api!r}" for t in others)
        text += f"; it is for {have}"
    else:
        names = sorted(
            {t.name for t in registration.registered_targets(platform) if api in (None, t.api)}
        )
        if near := kernel_symbols.did_you_mean(name, names):
            text += near
        elif names:
            text += "; registered are " + ", ".join(names[:10]) + (", …" if names[10:] else "")
    return (
        text + "; register it with torch_xla_ext.register_custom_call"
        f"({name!r}, library, platform={platform!r}{f', api={api!r}' if api else ''}), or link it "
        "into the wheel (docs/kernels.md)"
    )


def _refuse_dynamic(target: str, arrays: Sequence[ArrayType | None]) -> None:
    for number, array in enumerate(arrays):
        if array is not None and not all(isinstance(dim, int) for dim in array.shape):
            raise ValueError(
                f"custom call {target!r}: array {number}, operands and then results, has the "
                f"dynamic shape {list(array.shape)}: a kernel needs sizes that are known when "
                "the call is traced"
            )


def array_of(value: torch.Tensor | ArrayType) -> sharding.Array:
    """Describe an operand or result for a sharding plan."""
    shape = tuple(value.shape)
    return sharding.Array(shape, prod(shape) * value.dtype.itemsize)


def _present_aliases(
    target: str, inputs: Sequence[object], aliases: Mapping[int, int] | None
) -> dict[int, int] | None:
    """Return the aliases, with operands numbered without counting absent ones."""
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
                f"custom call {target!r}: aliases names input {number!r}, but there are "
                f"{len(inputs)} inputs"
            )
        result[output] = number
    return result


def _payload_of(
    request: Request, api: str, schema: Schema | None, arrays: list[ArrayType | None]
) -> bytes | str:
    """Return the untyped payload, or the text of the attributes of an FFI call."""
    target, values, payload = request.target, request.attributes, request.payload
    if payload is not None:
        if api == "ffi":
            raise TypeError(
                f"custom call {target!r}: an FFI call has no payload; pass attributes, or "
                "api='untyped'"
            )
        if values is not None:
            raise TypeError(f"custom call {target!r}: pass attributes or a payload, not both")
        if schema is not None:
            _check_own_payload(schema, arrays, payload)
        return payload
    if schema is not None:
        values = values or {}
        if not request.is_checked:
            values = untyped_payload.parameter_values(schema, values)
            schema.check(tuple(arrays), schema.sizes(values))
        if api == "untyped":
            return untyped_payload.encode(schema, arrays, values)
        return ffi_attributes.encode(ffi_attributes.of_kernel(schema, arrays, values))
    if api == "untyped":
        if values:
            raise TypeError(
                f"custom call {target!r}: an untyped target takes attributes only if it is a "
                "kernel that uses torch_xla_ext/kernel.h; pass a payload, or api='ffi'"
            )
        return b""
    return ffi_attributes.encode(values or {})


def _check_own_payload(
    schema: Schema, arrays: list[ArrayType | None], payload: bytes | str
) -> None:
    """Raise ValueError if the payload has other shapes: the kernel would read out of bounds."""
    try:
        read = untyped_payload.unpack(
            schema, payload.encode() if isinstance(payload, str) else bytes(payload)
        )
    except (TypeError, ValueError):
        return  # the kernel's own error says more
    described = [*read.operands, *read.results]
    for argument, array, other in zip(schema.arguments, arrays, described, strict=True):
        if array != other:
            raise ValueError(
                f"{schema.target}: {argument.label}: the payload says "
                f"{other or 'absent'}, but the call has {array or 'none'}"
            )
