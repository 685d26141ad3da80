"""custom_call: makes XLA custom calls."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import torch
import torch_xla

from torch_xla_ext import sharding
from torch_xla_ext.custom_call import arguments, reference
from torch_xla_ext.custom_call.arguments import Arguments
from torch_xla_ext.registry import registration
from xla_kernels import transforms
from xla_kernels.signature.schema import ArrayType
from xla_kernels.traits import NONE, Traits

_XLAC = torch_xla._XLAC


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
    traits: Traits = NONE,
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
            FFI target (xla_kernels.signature.ffi_attributes lists the supported values).
        payload: the bytes for another untyped target.
        api: "untyped" (XLA's API version 3) or "ffi" (XLA's FFI, version 4). None: "ffi" if an FFI
            function is registered for the device's platform and there is no payload.
        aliases: {output: input}: results that are written to an operand's buffer. XLA first copies
            the operand if something else needs it: the caller's tensor does not change.
        has_side_effect: XLA keeps the call even if nothing in the program uses its results. The
            program contains the call as long as Python holds one of the results when it runs. A
            kernel that writes to an operand needs an alias as well: a warning says so for a target
            without kernel.h, unless `aliases` is given, perhaps as {}.
        sharding_rule: the dimensions of sharded inputs that devices may share, as in
            `define_operator`; it covers all inputs and outputs. Each device then runs the kernel
            on its shard, with these attributes or this payload. Without it, sharded inputs are
            gathered.
        traits: what XLA has to know of the call besides (xla_kernels.Traits).

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
    tensors = arguments.tensors_of(target, inputs)
    transforms.refuse(target, tensors)
    checked = _checked(
        target,
        tensors,
        outputs,
        attributes,
        payload,
        api,
        aliases,
        has_side_effect,
        sharding_rule,
        traits,
    )
    if has_side_effect and aliases is None:
        _warn_of_lost_writes(checked, tensors)
    return _call(checked, tensors, outputs, attributes, payload)


def _checked(
    target: str,
    tensors: list[torch.Tensor | None],
    outputs: Sequence[object],
    attributes: Mapping[str, object] | None,
    payload: bytes | str | None,
    api: str | None,
    aliases: Mapping[int, int] | None,
    has_side_effect: bool,
    sharding_rule: str | None,
    traits: Traits,
) -> Arguments:
    """The arguments of custom_call, checked."""
    rule = arguments.rule_of(target, sharding_rule, tensors, outputs, aliases)
    checked = arguments.checked(
        target, tensors, outputs, attributes, payload, api, aliases, has_side_effect, traits
    )
    if not torch_xla.runtime.is_spmd():
        return checked
    call = _partitioned_call(
        target, rule, tensors, outputs, attributes, payload, api, aliases, traits
    )
    return arguments.partitioned(checked, call)


def _partitioned_call(
    target: str,
    rule: sharding.Rule | None,
    tensors: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    attributes: Mapping[str, object] | None,
    payload: bytes | str | None,
    api: str | None,
    aliases: Mapping[int, int] | None,
    traits: Traits,
) -> sharding.PartitionedCall:
    """The call as XLA asks about it; its attributes and payload are the same on each device."""
    metas = [None if t is None else t.to("meta") for t in tensors]
    types = [ArrayType.of(value) for value in outputs]
    count = len(types) - traits.num_hidden_results

    def local(
        operands: Sequence[tuple[int, ...] | None], results: Sequence[tuple[int, ...]]
    ) -> sharding.LocalCall:
        own = [
            None if meta is None else meta.new_empty(shape)
            for meta, shape in zip(metas, operands, strict=True)
        ]
        shapes = [*results, *(each.shape for each in types[count:])]
        pairs = [(shape, each.dtype) for shape, each in zip(shapes, types, strict=True)]
        made = arguments.checked(
            target, own, pairs, attributes, payload, api, aliases, False, traits
        )
        return sharding.LocalCall(made.output_shapes, made.output_dtypes, made.payload)

    return sharding.PartitionedCall(
        f"custom call {target!r}",
        rule,
        {f"inputs[{i}]": t if t is None else arguments.array_of(t) for i, t in enumerate(tensors)},
        [arguments.array_of(each) for each in types[:count]],
        aliases or {},
        local,
        owner=None,
    )


# The targets that _warn_of_lost_writes has warned of.
_warned: set[str] = set()


def _warn_of_lost_writes(checked: Arguments, tensors: Sequence[torch.Tensor | None]) -> None:
    """Warns that an operand that a kernel writes to needs an alias; once for each target.

    A kernel with a signature says what it writes to, and checks the alias itself.
    """
    target = checked.target
    if target in _warned or registration.schema(target, "untyped") is not None:
        return
    if registration.schema(target, "ffi") is not None:
        return
    _warned.add(target)
    results = list(zip(checked.output_shapes, checked.output_dtypes, strict=True))
    alike = {
        output: number
        for number, tensor in reversed(list(enumerate(tensors)))
        for output, (shape, dtype) in enumerate(results)
        if tensor is not None and (tuple(tensor.shape), tensor.dtype) == (tuple(shape), dtype)
    }
    remedy = f"aliases={alike}" if alike else "another output, and aliases={its number: the input}"
    warnings.warn(
        f"custom call {target!r}: has_side_effect keeps the call, but XLA does not know of writes "
        "to its operands: they are lost, or seen by other uses of the tensor. If the kernel writes "
        f"to an input, pass {remedy} and use the result; if it does not, pass aliases={{}}",
        stacklevel=3,
    )


def call_operator(
    target: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    *,
    attributes: Mapping[str, object] | None = None,
    payload: bytes | str | None = None,
    api: str | None = None,
    aliases: Mapping[int, int] | None = None,
    partitioned: sharding.PartitionedCall | None = None,
    traits: Traits = NONE,
    is_checked: bool = False,
) -> list[torch.Tensor]:
    """custom_call for an operator, which has taken care of transforms and shardings.

    Args:
        partitioned: the call in a program for several devices.
        is_checked: whether the operator has checked the arrays and parameters against the kernel's
            signature. Then `attributes` are what parameter_values returned.
    """
    tensors = arguments.tensors_of(target, inputs)
    transforms.refuse(target, tensors)
    checked = arguments.checked(
        target, tensors, outputs, attributes, payload, api, aliases, False, traits, is_checked
    )
    checked = arguments.partitioned(checked, partitioned)
    return _call(checked, tensors, outputs, attributes, payload)


def prepare_operator(
    target: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    *,
    attributes: Mapping[str, object] | None = None,
    payload: bytes | str | None = None,
    api: str | None = None,
    aliases: Mapping[int, int] | None = None,
    partitioned: sharding.PartitionedCall | None = None,
    traits: Traits = NONE,
    is_checked: bool = False,
) -> object | None:
    """What call_operator does once for operands of such shapes and dtypes: checks, and encoding.

    Args:
        all: as of call_operator.

    Returns:
        The call without its operands, for _XLAC._xla_register_operator and _xla_call_prepared; None
        if a reference implementation is to take the kernel's place.

    Raises:
        TypeError, ValueError: as call_operator.
    """
    if reference.replacement(target) is not None:
        return None
    tensors = arguments.tensors_of(target, inputs)
    checked = arguments.checked(
        target, tensors, outputs, attributes, payload, api, aliases, False, traits, is_checked
    )
    return _XLAC._xla_prepare_custom_call(*arguments.partitioned(checked, partitioned))


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
    sharding_rule: str | None = None,
    traits: Traits = NONE,
) -> object | None:
    """What custom_call does once for operands of such shapes and dtypes, as prepare_operator.

    Args:
        all: as of custom_call.
    """
    if reference.replacement(target) is not None:
        return None
    checked = _checked(
        target,
        arguments.tensors_of(target, inputs),
        outputs,
        attributes,
        payload,
        api,
        aliases,
        has_side_effect,
        sharding_rule,
        traits,
    )
    return _XLAC._xla_prepare_custom_call(*checked)


def local_call(
    target: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    *,
    attributes: Mapping[str, object] | None = None,
    payload: bytes | str | None = None,
    api: str | None = None,
    aliases: Mapping[int, int] | None = None,
    traits: Traits = NONE,
    is_checked: bool = False,
) -> sharding.LocalCall:
    """What each device calls of an operator's call.

    Args:
        all: as of call_operator, for meta tensors of a device's shapes.
    """
    checked = arguments.checked(
        target, inputs, outputs, attributes, payload, api, aliases, False, traits, is_checked
    )
    return sharding.LocalCall(checked.output_shapes, checked.output_dtypes, checked.payload)


def is_cacheable(target: str) -> bool:
    """Whether a prepared call is all that custom_call makes of operands with an _xla_call_key.

    False under torch's transforms and for reference implementations.
    """
    return not transforms.may_apply() and reference.replacement(target) is None


def _call(
    checked: Arguments,
    tensors: list[torch.Tensor | None],
    outputs: Sequence[object],
    attributes: Mapping[str, object] | None,
    payload: bytes | str | None,
) -> list[torch.Tensor]:
    """Makes the call, or calls the reference implementation, which gets the original arguments."""
    target = checked.target
    replaced = reference.replacement(target)
    if replaced is not None:
        _XLAC._xla_prepare_custom_call(*checked)
        if payload is not None:
            attributes = {"payload": payload}
        results = replaced(tensors, outputs, attributes or {})
        _check_reference(target, results, checked.output_shapes, checked.output_dtypes)
        return results
    if torch.is_grad_enabled() and any([tensor.requires_grad for tensor in checked.operands]):

        def call(operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return _XLAC._xla_gpu_custom_call(*checked._replace(operands=operands))

        return list(transforms.WithoutDerivative.apply(target, call, *checked.operands))
    return _XLAC._xla_gpu_custom_call(*checked)


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
