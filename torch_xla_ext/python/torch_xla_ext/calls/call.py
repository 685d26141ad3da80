"""custom_call: makes XLA custom calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch_xla
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor

from torch_xla_ext import sharding
from torch_xla_ext.calls import reference, transforms
from torch_xla_ext.kernel_schema import ffi_attributes, untyped_payload
from torch_xla_ext.kernel_schema.schema import ArrayType, Schema
from torch_xla_ext.sharding import rule as rules
from torch_xla_ext.targets import registration
from torch_xla_ext.targets.platforms import APIS, platform_of

_XLAC = torch_xla._XLAC
# The prefix of the targets that XLA:GPU itself runs, by cuDNN.
_CUDNN = "__cudnn$"
# The attribute with which an FFI call lists the optional operands that it omits (ffi_entry.h).
_ABSENT_OPERANDS = "absent_operands"


# Targets and APIs that were found. A registration is never undone.
_known: set[tuple[str, str]] = set()


def _check_list(target: str, name: str, values: object) -> None:
    if not isinstance(values, (list, tuple)):
        raise TypeError(
            f"custom call {target!r}: {name} must be a list or a tuple, but is of type "
            f"{type(values).__name__}"
        )


def _tensors(target: str, inputs: object) -> list[torch.Tensor | None]:
    """The inputs. An XLAShardedTensor is replaced by the tensor that it wraps."""
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


def _result_types(target: str, outputs: object) -> list[ArrayType]:
    _check_list(target, "outputs", outputs)
    types = []
    for index, value in enumerate(outputs):
        try:
            types.append(ArrayType.of(value))
        except (TypeError, ValueError) as error:
            raise type(error)(f"custom call {target!r}: outputs[{index}]: {error}") from None
    return types


def _refuse_dynamic(target: str, arrays: Sequence[ArrayType | None]) -> None:
    for number, array in enumerate(arrays):
        if array is not None and not all(isinstance(dim, int) for dim in array.shape):
            raise ValueError(
                f"custom call {target!r}: array {number}, operands and then results, has the "
                f"dynamic shape {list(array.shape)}: a kernel needs sizes that are known when "
                "the call is traced"
            )


def _payload_of(
    target: str,
    api: str,
    schema: Schema | None,
    arrays: list[ArrayType | None],
    values: Mapping[str, object] | None,
    payload: bytes | str | None,
    is_checked: bool,
) -> bytes | str:
    """What the kernel is handed: a payload, or the text of attributes."""
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
        if not is_checked:
            values = untyped_payload.parameter_values(schema, values)
            schema.check(tuple(arrays), schema.sizes(values))
        if api == "untyped":
            return untyped_payload.encode(schema, arrays, values)
        absent = sum(1 << i for i, array in enumerate(arrays) if array is None)
        return ffi_attributes.encode(
            _typed(schema, values) | ({_ABSENT_OPERANDS: absent} if absent else {})
        )
    if api == "untyped":
        if values:
            raise TypeError(
                f"custom call {target!r}: an untyped target takes attributes only if it is a "
                "kernel that uses torch_xla_ext/kernel.h; pass a payload, or api='ffi'"
            )
        return b""
    return ffi_attributes.encode(values or {})


def _typed(schema: Schema, values: Mapping[str, object]) -> dict[str, object]:
    """Parameters as numbers of the widths that the kernel declares."""
    import numpy as np

    types = {"bool": bool, "i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}
    types["str"] = str
    return {p.name: types[p.type](values[p.name]) for p in schema.parameters}


def _check_own_payload(
    schema: Schema, arrays: list[ArrayType | None], payload: bytes | str
) -> None:
    """Refuses a descriptor of other shapes: the kernel would go beyond its buffers."""
    try:
        read = untyped_payload.unpack(
            schema, payload.encode() if isinstance(payload, str) else bytes(payload)
        )
    except (TypeError, ValueError):
        return  # the error of the kernel itself is more exact
    described = [*read.operands, *read.results]
    for argument, array, other in zip(schema.arguments, arrays, described, strict=True):
        if array != other:
            raise ValueError(
                f"{schema.target}: {argument.label}: the payload says "
                f"{other or 'absent'}, but the call has {array or 'none'}"
            )


def _unknown_target_text(name: str, platform: str, api: str | None) -> str:
    """The error text for a target that is not registered: similar names, and the remedy.

    Args:
        api: None for a call that may use any.
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
        if near := registration.did_you_mean(name, names):
            text += near
        elif names:
            text += "; registered are " + ", ".join(names[:10]) + (", …" if names[10:] else "")
    return (
        text + "; register it with torch_xla_ext.register_custom_call"
        f"({name!r}, library, platform={platform!r}{f', api={api!r}' if api else ''}), or link it "
        "into the wheel (docs/kernels.md)"
    )


def _check_registered(target: str, api: str, given_api: str | None) -> None:
    if (target, api) in _known:
        return
    platform = platform_of(torch_xla.runtime.device_type())
    if target.startswith(_CUDNN) and platform == "CUDA":
        pass  # XLA:GPU runs these, no registered kernel
    elif platform is not None and not registration.is_registered(target, platform, api):
        raise ValueError(_unknown_target_text(target, platform, given_api))
    _known.add((target, api))


def _check_reference(
    target: str,
    results: Sequence[torch.Tensor],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
) -> None:
    types = [ArrayType(tuple(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    given = [ArrayType(tuple(result.shape), result.dtype) for result in results]
    if given != types:
        raise ValueError(
            f"custom call {target!r}: its reference implementation gives "
            f"{', '.join(map(str, given))} instead of {', '.join(map(str, types))}"
        )


def custom_call(
    target: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    *,
    attributes: Mapping[str, object] | None = None,
    payload: bytes | str | None = None,
    api: str | None = None,
    aliases: Mapping[int, int] | None = None,
    has_side_effect: bool = False,
    sharding_rule: str | None = None,
) -> list[torch.Tensor]:
    """Calls the kernel that is registered as `target`.

    The kernel gets row-major operands and results, whatever the strides of the inputs. For a kernel
    that uses torch_xla_ext/kernel.h, the call is the same for both APIs, and its operands, results
    and parameters are first checked against the signature.

    Args:
        target: the name under which the kernel is registered.
        inputs: at least one XLA tensor, all on the same device; None for an omitted optional
            operand of a kernel that uses kernel.h.
        outputs: descriptions of the results, at least one: each a tensor (it may be a meta tensor),
            another object with shape and dtype, or a pair (shape, dtype).
        attributes: the parameters of a kernel that uses kernel.h, or the attributes of another
            FFI target (torch_xla_ext.kernel_schema.ffi_attributes lists the supported values).
        payload: the bytes for another untyped target.
        api: "untyped" (XLA's API version 3) or "ffi" (XLA's FFI, version 4). None: "ffi" if an FFI
            function is registered for the device's platform and there is no payload.
        aliases: {output: input}: results that are written to an operand's buffer. XLA first copies
            the operand if something else needs it: the caller's tensor does not change.
        has_side_effect: XLA keeps the call even if nothing in the program uses its results. The
            program contains the call as long as Python holds one of the results when it runs.
        sharding_rule: the dimensions of sharded inputs that devices may share, as in
            `define_operator`; it covers all inputs and outputs. Each device then runs the kernel
            on its shard, with these attributes or this payload. Without it, sharded inputs are
            gathered.

    Returns:
        An XLA tensor for each of `outputs`. It has no derivative: a backward pass through it raises
        an error.

    Raises:
        TypeError, ValueError: immediately, for a wrong argument or an unregistered target.
        NotImplementedError: immediately, under torch.vmap, torch.func's derivatives, forward-mode
            differentiation or make_fx; and in a backward pass. Use `define_operator` for these.
        RuntimeError: when the results are read, if the kernel reported a failure or an operand has
            a dynamic shape.
    """
    if not isinstance(target, str):
        raise TypeError(
            f"custom_call: target must be a str, but is of type {type(target).__name__}; the order "
            "is custom_call(target, inputs, outputs)"
        )
    tensors = _tensors(target, inputs)
    transforms.refuse(target, tensors)
    parts = _parts(target, sharding_rule, tensors, outputs, aliases)
    checked = _checked(
        target, tensors, outputs, attributes, payload, api, aliases, has_side_effect, parts
    )
    return _call(checked, tensors, outputs, attributes)


def call_operator(
    target: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    *,
    attributes: Mapping[str, object] | None = None,
    payload: bytes | str | None = None,
    api: str | None = None,
    aliases: Mapping[int, int] | None = None,
    parts: sharding.Parts | None = None,
    is_checked: bool = False,
) -> list[torch.Tensor]:
    """custom_call for an operator, which has taken care of transforms and shardings.

    Args:
        outputs: of the results that `parts` names, the whole; of others, what a device has.
        parts: what each device runs the call on; `attributes` and `payload` are for that.
        is_checked: whether the operator has checked the arrays and parameters against the kernel's
            signature. Then `attributes` are what parameter_values returned.
    """
    tensors = _tensors(target, inputs)
    transforms.refuse(target, tensors)
    checked = _checked(
        target, tensors, outputs, attributes, payload, api, aliases, False, parts, is_checked
    )
    return _call(checked, tensors, outputs, attributes)


def _call(
    checked: _Arguments,
    tensors: list[torch.Tensor | None],
    outputs: Sequence[object],
    attributes: Mapping[str, object] | None,
) -> list[torch.Tensor]:
    """Makes the call, or calls the reference implementation, which gets the original arguments."""
    target = checked.target
    replaced = reference.replacement(target)
    if replaced is not None:
        _XLAC._xla_prepare_custom_call(*checked)
        if target.startswith(_CUDNN):
            attributes = json.loads(checked.payload)
        results = replaced(tensors, outputs, attributes or {})
        _check_reference(target, results, checked.output_shapes, checked.output_dtypes)
        return results
    if torch.is_grad_enabled() and any([tensor.requires_grad for tensor in checked.operands]):

        def call(operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return _XLAC._xla_gpu_custom_call(*checked._replace(operands=operands))

        return list(transforms.WithoutDerivative.apply(target, call, *checked.operands))
    return _XLAC._xla_gpu_custom_call(*checked)


def prepare(
    target: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    *,
    attributes: Mapping[str, object] | None = None,
    payload: bytes | str | None = None,
    api: str | None = None,
    aliases: Mapping[int, int] | None = None,
    has_side_effect: bool = False,
    parts: sharding.Parts | None = None,
    is_checked: bool = False,
) -> object | None:
    """What call_operator does once for operands of such shapes and dtypes: checks, and encoding.

    Args:
        all: as of custom_call and call_operator.

    Returns:
        The call without its operands, for _XLAC._xla_register_operator and _xla_call_prepared; None
        if a reference implementation is to take the kernel's place.

    Raises:
        TypeError, ValueError: as custom_call.
    """
    if reference.replacement(target) is not None:
        return None
    tensors = _tensors(target, inputs)
    checked = _checked(
        target,
        tensors,
        outputs,
        attributes,
        payload,
        api,
        aliases,
        has_side_effect,
        parts,
        is_checked,
    )
    return _XLAC._xla_prepare_custom_call(*checked)


def is_plain(target: str, operands: Sequence[torch.Tensor]) -> bool:
    """Whether a prepared call is all that custom_call makes of these operands.

    It is not where custom_call computes something else, or refuses: with a reference
    implementation, a gradient, or one of torch's transforms.
    """
    return (
        not transforms.may_apply()
        and not torch_xla.runtime.is_spmd()  # where custom_call asks for the operands' shardings
        and not (torch.is_grad_enabled() and any([tensor.requires_grad for tensor in operands]))
        and reference.replacement(target) is None
    )


class _Arguments(NamedTuple):
    """The arguments of _xla_gpu_custom_call, in its order."""

    operands: Sequence[torch.Tensor]
    payload: bytes | str
    output_shapes: list[tuple[int, ...]]
    output_dtypes: list[torch.dtype]
    target: str
    aliases: Mapping[int, int] | None
    api_version: int
    has_side_effect: bool
    operand_shards: Sequence[sharding.Shard] | None
    result_shards: Sequence[sharding.Shard] | None


def _checked(
    target: str,
    tensors: list[torch.Tensor | None],
    outputs: Sequence[object],
    attributes: Mapping[str, object] | None,
    payload: bytes | str | None,
    api: str | None,
    aliases: Mapping[int, int] | None,
    has_side_effect: bool,
    parts: sharding.Parts | None,
    is_checked: bool = False,
) -> _Arguments:
    """Checks what C++ cannot; the arguments are those of custom_call and call_operator."""
    given_api = api
    if api is None:
        api = "untyped" if payload is not None else registration.default_api(target)
    elif not isinstance(api, str) or api not in APIS:
        raise ValueError(
            f"custom call {target!r}: api must be 'untyped', 'ffi' or None, but is {api!r}"
        )
    if not isinstance(has_side_effect, bool):
        raise TypeError(
            f"custom call {target!r}: has_side_effect must be a bool, but is of type "
            f"{type(has_side_effect).__name__}"
        )
    types = _result_types(target, outputs)
    _check_registered(target, api, given_api if payload is None else api)
    present = [tensor for tensor in tensors if tensor is not None]
    schema = registration.schema(target, api)
    if schema is not None:
        if not is_checked:
            schema.check_counts(len(tensors), len(types))
    elif len(present) != len(tensors):
        raise TypeError(
            f"custom call {target!r}: inputs[{tensors.index(None)}] must be an XLA tensor, but is "
            "None: only kernels made with torch_xla_ext/kernel.h have optional operands"
        )
    arrays = [t if t is None else ArrayType(t.shape, t.dtype) for t in tensors] + types
    if parts is not None:
        shards = [*parts.operands, *parts.results]
        for i, shard in enumerate(shards):
            if shard is not None:
                arrays[i] = arrays[i]._replace(shape=shard.shape)
    try:
        handed = _payload_of(target, api, schema, arrays, attributes, payload, is_checked)
    except TypeError:
        _refuse_dynamic(target, arrays)  # a symbolic size cannot be hashed
        raise
    return _Arguments(
        present,
        handed,
        [array.shape for array in types],
        [array.dtype for array in types],
        target,
        _present_aliases(target, tensors, aliases),
        APIS[api].call_version,
        has_side_effect,
        parts and [shard for shard in parts.operands if shard is not None],
        parts and parts.results,
    )


def _parts(
    target: str,
    sharding_rule: str | None,
    tensors: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    aliases: Mapping[int, int] | None,
) -> sharding.Parts | None:
    """What each device runs the call on. The tensors and the rule are checked, no more."""
    if sharding_rule is None and not torch_xla.runtime.is_spmd():
        return None
    operands = {f"inputs[{i}]": tensor for i, tensor in enumerate(tensors)}
    types = _result_types(target, outputs)
    aliases = aliases if isinstance(aliases, Mapping) else {}
    rule = None
    if sharding_rule is not None:
        try:
            rule = rules.parse(sharding_rule)
            ranks = [(name, None if t is None else t.dim()) for name, t in operands.items()]
            results = [(f"outputs[{i}]", len(each.shape)) for i, each in enumerate(types)]
            rules.check_ranks(rule, ranks, results)
            rules.check_aliases(rule, aliases)
        except (TypeError, ValueError) as error:
            raise type(error)(f"custom call {target!r}: {error}") from None
    shapes = [each.shape for each in types]
    return sharding.parts(f"custom call {target!r}", rule, operands, shapes, aliases)


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
                f"custom call {target!r}: aliases names input {number!r}, but there are "
                f"{len(inputs)} inputs"
            )
        result[output] = number
    return result
