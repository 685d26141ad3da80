"""The function custom_call, which makes XLA custom calls."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch_xla

from torch_xla_ext import sharding
from torch_xla_ext.custom_call import arguments, reference
from torch_xla_ext.custom_call.arguments import Arguments, Request
from torch_xla_ext.registry import registration
from torch_xla_ext.sharding import Parts, Shape
from xla_kernels import transforms
from xla_kernels.signature.schema import ArrayType
from xla_kernels.traits import NONE, Traits

_XLAC = torch_xla._XLAC


class Local(NamedTuple):
    """The call that one device makes on its part of the arrays.

    Attributes:
        arguments: a function that receives the part's inputs, as meta tensors, and the types of its
            outputs. It returns the arguments of custom_call that depend on shapes: some of
            `attributes`, `payload` and `outputs`. XLA calls it when it compiles a program. If it
            raises TypeError or ValueError, operands are gathered, with a warning.
        values: other values that `arguments` depends on; their repr distinguishes calls.
    """

    arguments: Callable[[Sequence[torch.Tensor | None], Sequence[ArrayType]], Mapping[str, object]]
    values: object = None


def parts(
    caller: str,
    function: Callable[[Sequence[torch.Tensor | None], Sequence[ArrayType]], object],
    sharding_rule: str | None,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[ArrayType],
    aliases: Mapping[int, int] | None = None,
) -> Parts | None:
    """Call a user's function for each possible shape of a device's part of the arguments.

    Args:
        caller: prefix of error messages.
        function: receives meta tensors and types, as Local.arguments does.
        sharding_rule, inputs, outputs, aliases: as of custom_call.

    Returns:
        None if there is no rule, or only one device.

    Raises:
        TypeError, ValueError: the rule does not fit the arrays.
    """
    rule = arguments.rule_of(caller, sharding_rule, inputs, outputs, aliases)
    if rule is None:
        return None
    dtypes = [None if each is None else each.dtype for each in inputs]

    def of_shapes(operands: Sequence[Shape | None], results: Sequence[Shape]) -> object:
        metas = [
            None if dtype is None else torch.empty(shape, dtype=dtype, device="meta")
            for shape, dtype in zip(operands, dtypes, strict=True)
        ]
        types = [ArrayType(s, each.dtype) for s, each in zip(results, outputs, strict=True)]
        return function(metas, types)

    shapes = [None if each is None else tuple(each.shape) for each in inputs]
    return sharding.parts(of_shapes, rule, shapes, [tuple(each.shape) for each in outputs])


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
    local: Local | None = None,
    traits: Traits = NONE,
) -> list[torch.Tensor]:
    """Call the kernel that is registered as `target`.

    The kernel receives row-major operands and results, whatever the inputs' strides. For a kernel
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
            program contains the call only if Python still holds one of the results when the program
            runs. A kernel that writes to an operand needs an alias as well: a warning says so for a
            target without kernel.h, unless `aliases` is given, perhaps as {}.
        sharding_rule: the dimensions of sharded inputs that devices may share, as in
            `define_operator`; it covers all inputs and outputs. Each device then runs the kernel
            on its shard, with these attributes or this payload. If they depend on a divided size,
            pass `local`. The default is the rule of the target's registration. Without a rule,
            sharded inputs are gathered.
        local: how a device's arguments depend on the shapes of its part.
        traits: further properties of the call (xla_kernels.Traits).

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
    request = Request(
        target,
        arguments.tensors_of(target, inputs),
        outputs,
        attributes,
        payload,
        api,
        aliases,
        has_side_effect,
        traits,
    )
    transforms.refuse(target, request.inputs)
    checked = _checked(request, sharding_rule, local)
    if has_side_effect and aliases is None:
        _warn_of_lost_writes(checked, request.inputs)
    return _call(request, checked)


def _checked(request: Request, sharding_rule: str | None, local: Local | None) -> Arguments:
    """Return the arguments of custom_call, checked."""
    target = request.target
    types = arguments.result_types(target, request.outputs)
    types = types[: len(types) - request.traits.num_hidden_results]
    if sharding_rule is None:
        sharding_rule = registration.sharding_rule(target)
    caller = f"custom call {target!r}"
    rule = arguments.rule_of(caller, sharding_rule, request.inputs, types, request.aliases)
    checked = arguments.checked(request)
    if not torch_xla.runtime.is_spmd():
        return checked
    return arguments.partitioned(checked, _partitioned_call(caller, request, rule, local))


def _partitioned_call(
    caller: str, request: Request, rule: sharding.Rule | None, given: Local | None
) -> sharding.PartitionedCall:
    """Return the call in the form that XLA's partitioner needs."""
    metas = [None if t is None else t.to("meta") for t in request.inputs]
    types = [ArrayType.of(value) for value in request.outputs]
    count = len(types) - request.traits.num_hidden_results
    dtypes = [each.dtype for each in types]
    names = [f"inputs[{i}]" for i in range(len(metas))]
    arrays = [None if meta is None else arguments.array_of(meta) for meta in metas]
    whole = dataclasses.replace(request, inputs=metas)  # keeps no tensor alive

    def local(operands: Sequence[Shape | None], results: Sequence[Shape]) -> sharding.LocalCall:
        own = [
            None if meta is None else meta.new_empty(shape)
            for meta, shape in zip(metas, operands, strict=True)
        ]
        shapes = [*results, *(each.shape for each in types[count:])]
        own_types = [ArrayType(tuple(s), d) for s, d in zip(shapes, dtypes, strict=True)]
        part = dataclasses.replace(whole, inputs=own, outputs=own_types)
        if given is not None:
            part = dataclasses.replace(part, **given.arguments(own, own_types[:count]))
            if [ArrayType.of(each).dtype for each in part.outputs] != dtypes:
                raise ValueError(
                    f"expected a device's results to have the dtypes of {types} but got "
                    f"{list(map(ArrayType.of, part.outputs))}"
                )
        return local_call(part)

    return sharding.PartitionedCall(
        caller,
        rule,
        dict(zip(names, arrays, strict=True)),
        [arguments.array_of(each) for each in types[:count]],
        request.aliases or {},
        local,
        owner=None,
        values=(given and given.values,),
    )


# The targets for which _warn_of_lost_writes has warned.
_warned: set[str] = set()


def _warn_of_lost_writes(checked: Arguments, tensors: Sequence[torch.Tensor | None]) -> None:
    """Warn that an operand that a kernel writes to needs an alias; once for each target.

    A kernel with a signature declares its writes, and checks the alias itself.
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
    request: Request, partitioned: sharding.PartitionedCall | None = None
) -> list[torch.Tensor]:
    """Make a custom_call for an operator, which handles transforms and shardings itself.

    Args:
        partitioned: the call in a program for several devices.
    """
    transforms.refuse(request.target, request.inputs)
    return _call(request, arguments.partitioned(arguments.checked(request), partitioned))


def prepare_operator(
    request: Request, partitioned: sharding.PartitionedCall | None = None
) -> object | None:
    """Prepare call_operator for all operands with these shapes and dtypes.

    Returns:
        The call without its operands, for _XLAC._xla_register_operator and _xla_call_prepared; None
        if a reference implementation replaces the kernel.

    Raises:
        TypeError, ValueError: as call_operator.
    """
    if reference.replacement(request.target) is not None:
        return None
    checked = arguments.partitioned(arguments.checked(request), partitioned)
    return _XLAC._xla_prepare_custom_call(*checked)


def prepare(
    target: str,
    inputs: Sequence[torch.Tensor | None],
    outputs: Sequence[object],
    *,
    sharding_rule: str | None = None,
    local: Local | None = None,
    **options: object,
) -> object | None:
    """Prepare a custom_call for operands with these shapes and dtypes, as prepare_operator does.

    Args:
        all: as of custom_call.
    """
    if reference.replacement(target) is not None:
        return None
    request = Request(target, arguments.tensors_of(target, inputs), outputs, **options)
    return _XLAC._xla_prepare_custom_call(*_checked(request, sharding_rule, local))


def local_call(request: Request) -> sharding.LocalCall:
    """Return a device's call, for a request with meta tensors of the device's shapes."""
    checked = arguments.checked(request)
    return sharding.LocalCall(checked.output_shapes, checked.output_dtypes, checked.payload)


def is_cacheable(target: str) -> bool:
    """Return whether a prepared call serves all operands with one _xla_call_key.

    False under torch's transforms and for reference implementations.
    """
    return not transforms.may_apply() and reference.replacement(target) is None


def _call(request: Request, checked: Arguments) -> list[torch.Tensor]:
    """Make the call, or call the reference implementation with the original arguments."""
    target = checked.target
    replaced = reference.replacement(target)
    if replaced is not None:
        _XLAC._xla_prepare_custom_call(*checked)
        attributes = request.attributes or {}
        if request.payload is not None:
            attributes = {"payload": request.payload}
        results = replaced(request.inputs, request.outputs, attributes)
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
            f"custom call {target!r}: its reference implementation returns "
            f"{', '.join(map(str, given))} instead of {', '.join(map(str, types))}"
        )
