"""Defines PyTorch operators that call kernels on torch-tpu's device.

The functions have the arguments of torch_xla_ext's, so that an operator's file serves both. Here
`sharding_rule` and `environment` have no effect: there is one device in a process, and nothing is
remembered between calls.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from torch_xla_gpu import custom_call, device, kernels
from torch_xla_gpu.launchers import on_device
from torch_xla_gpu.launchers.cuda_source.kernel import CudaKernel
from torch_xla_gpu.launchers.launch import TARGET
from torch_xla_gpu.operator import autograd, declaration, tensor_checks, torch_library
from torch_xla_gpu.operator.checked import Checked, OperatorCall, Result
from torch_xla_gpu.operator.tensor_checks import Tensors, Value
from torch_xla_gpu.registry import kernel_symbols
from torch_xla_gpu.signature import ffi_attributes
from torch_xla_gpu.signature.schema import ArrayType, Schema

# PyTorch's dispatch keys of torch-tpu's device.
_KEY, _AUTOGRAD_KEY, _AUTOCAST_KEY = "PrivateUse1", "AutogradPrivateUse1", "AutocastPrivateUse1"
# The dtypes that autocast casts between; it leaves float64 alone.
_AUTOCAST_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class VmapInfo(Protocol):
    """The first argument that torch.library.register_vmap passes to a batching rule."""

    batch_size: int
    randomness: str


class _Call(OperatorCall):
    """An operator's calls with tensors of the device."""

    def on_device(self, *values: Value) -> Tensors:
        """The results of a kernel that may write to copies of its operands only."""
        checked = self.checked(values, self._num_results)
        copies = {name: custom_call.copy(checked.args[name]) for name in self.in_place.values()}
        return self._returned(self._call(checked._replace(args=checked.args | copies)))

    def in_place_on_device(self, *values: Value) -> None:
        """Gives each tensor that the kernel writes to its new value."""
        checked = self.checked(values, self._num_results)
        written = [checked.args[name] for name in self.in_place.values()]
        # The kernel writes into a tensor's buffer; what is part of another tensor has none of its
        # own, and what another operand reads, too, keeps its old value there.
        operands = {
            name: _own_buffer(checked.args[name], name in self.in_place.values(), written)
            for name in self.operands
            if checked.args[name] is not None
        }
        results = self._call(checked._replace(args=checked.args | operands))
        for i, name in self.in_place.items():
            checked.args[name].copy_(results[i])

    def _call(self, checked: Checked) -> list[torch.Tensor]:
        tensors = [checked.args[name] for name in self.operands]
        present = [tensor for tensor in tensors if tensor is not None]
        results = [ArrayType(tuple(shape), dtype) for shape, dtype in checked.results]
        if self.payload is not None:
            payload = self.payload(**checked.args)
            return custom_call.call(self.target, present, results, payload=payload)
        return custom_call.call(
            kernels.called_name(self.target, self.schema.text),
            present,
            results,
            attributes=ffi_attributes.of_kernel(self.schema, tensors, checked.parameters),
            aliases=self._aliases(checked),
        )

    def _aliases(self, checked: Checked) -> dict[int, int]:
        """Of results in an operand's buffer, its number among those that are there."""
        given = [name for name in self.operands if checked.args[name] is not None]
        return {result: given.index(name) for result, name in self.in_place.items()}


@dataclasses.dataclass(frozen=True)
class _CudaKernelCall(_Call):
    """As _Call: on a GPU a launch of the kernel, on the CPU its reference."""

    kernel: CudaKernel | None = None

    def _call(self, checked: Checked) -> list[torch.Tensor]:
        tensors = [checked.args[name] for name in self.operands]
        results = [ArrayType(tuple(shape), dtype) for shape, dtype in checked.results]
        if on_device.is_cpu():
            # A reference does not have the kernel's workspaces.
            least = self._num_returned or len(self.in_place)
            args = [*tensors, *checked.parameters.values()]
            return self.kernel.calls.reference_results(args, results, least)
        types = [None if tensor is None else ArrayType.of(tensor) for tensor in tensors]
        launch, words = self.kernel.calls.prepared(types, results, checked.parameters)
        on_device.register()
        return custom_call.call(
            TARGET,
            [tensor for tensor in tensors if tensor is not None],
            results,
            attributes=launch.attributes(words),
            aliases=self._aliases(checked),
        )


def _own_buffer(
    tensor: torch.Tensor, is_written: bool, written: Sequence[torch.Tensor]
) -> torch.Tensor:
    if is_written:
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
        return tensor if whole and tensor.is_contiguous() else custom_call.copy(tensor)
    if any(tensor_checks.overlap(tensor, other) for other in written):
        return custom_call.copy(tensor)
    return tensor


def define_operator(
    schema: str,
    *,
    target: str | CudaKernel,
    check: Callable[..., None] | None = None,
    attributes: Callable[..., Mapping[str, object]] | None = None,
    sizes: Callable[..., Mapping[str, int]] | None = None,
    results: Callable[..., Sequence[Result]] | None = None,
    payload: Callable[..., bytes] | None = None,
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Tensors] | None = None,
    jvp: Callable[..., Tensors] | None = None,
    vmap: Callable[..., tuple[Tensors, int | tuple[int | None, ...]]] | None = None,
    promotes: bool = False,
    environment: Sequence[str] | None = None,
    sharding_rule: str | None = None,
    replace: bool = False,
) -> torch._ops.OpOverload:
    """Defines a PyTorch operator that calls a kernel, as a pure function of its arguments.

    The arguments are those of `torch_xla_ext.define_operator`. The operator runs eagerly and in
    programs of torch.compile, on torch-tpu's device and on meta and fake tensors.

    Args:
        payload: for one of XLA's own targets, such as cuDNN's; it requires `results`.
        environment, sharding_rule: have no effect here.

    Raises:
        TypeError, ValueError: the operator does not match the kernel, or no such kernel is
            registered.
        RuntimeError: the operator is already defined, or PyTorch refuses its schema.
    """
    name = declaration.qualified_name(schema)
    library = torch_library.open_library(name, replace)
    try:
        operator = torch_library.declare(library, name, schema)
        call = _checked_call(
            operator,
            target,
            results=results,
            payload=payload,
            check=check,
            attributes=attributes,
            sizes=sizes,
        )
    except BaseException:
        torch_library.close_library(name)
        raise
    library.impl(operator, call.on_device, _KEY)
    differentiated = autograd.make_kernel(operator, setup_context, backward, jvp)
    library.impl(operator, differentiated, _AUTOGRAD_KEY)
    torch.library.register_fake(name, call.on_fake, lib=library)
    if vmap is not None:
        torch.library.register_vmap(name, vmap, lib=library)
    if promotes:
        library.impl(operator, _promoting(operator), _AUTOCAST_KEY)
    return operator


def define_in_place_operator(
    schema: str,
    *,
    target: str | CudaKernel,
    check: Callable[..., None] | None = None,
    attributes: Callable[..., Mapping[str, object]] | None = None,
    environment: Sequence[str] | None = None,
    sharding_rule: str | None = None,
    replace: bool = False,
) -> torch._ops.OpOverload:
    """Defines a PyTorch operator that calls a kernel and writes to some of its arguments.

    The arguments are those of `torch_xla_ext.define_in_place_operator`. Eagerly, the buffer of a
    tensor that is written to is donated to the call; a tensor that is a part of another one is
    copied before, and the result is copied into it.

    Raises:
        As `define_operator`.
    """
    name = declaration.qualified_name(schema)
    declaration.functional_form(name, schema)  # raises for a schema that writes nothing
    library = torch_library.open_library(name, replace)
    try:
        operator = torch_library.declare(library, name, schema)
        declared = operator._schema.arguments
        written = [i for i, argument in enumerate(declared) if argument.is_write]
        in_place = {result: declared[i].name for result, i in enumerate(written)}
        call = _checked_call(
            operator, target, check=check, attributes=attributes, in_place=in_place
        )
    except BaseException:
        torch_library.close_library(name)
        raise

    def run(*values: Value) -> None:
        tensors = [(declared[i].name, values[i]) for i in written]
        for each, tensor in tensors:
            tensor_checks.require_contiguous(name, each, tensor)
        for (each, tensor), (other_name, other) in itertools.combinations(tensors, 2):
            tensor_checks.require_no_overlap(name, other_name, other, each, tensor)
        call.in_place_on_device(*values)

    library.impl(operator, run, _KEY)
    library.impl(operator, autograd.make_in_place_kernel(operator, written), _AUTOGRAD_KEY)
    torch.library.register_fake(name, lambda *args: call.checked(args) and None, lib=library)
    return operator


def _checked_call(
    operator: torch._ops.OpOverload,
    target: str | CudaKernel,
    *,
    results: Callable[..., Sequence[Result]] | None = None,
    payload: Callable[..., bytes] | None = None,
    in_place: Mapping[int, str] | None = None,
    **functions: Callable[..., object] | None,
) -> _Call:
    """The operator's calls, after a check that it matches its kernel."""
    name = operator._schema.name
    make = _Call
    if isinstance(target, CudaKernel):
        schema = declaration.cuda_kernel_schema(name, target, results, payload)
        make = functools.partial(_CudaKernelCall, kernel=target)
    elif isinstance(target, str):
        schema = _schema(name, target, results, payload)
    else:
        raise TypeError(
            f"define_operator: {name}: target must be a str or a cuda_kernel, but is of type "
            f"{type(target).__name__}"
        )
    if schema is not None and in_place is None:
        in_place = {i: each.name for i, each in enumerate(schema.results) if each.in_place}
    call = make(
        operator,
        str(target),
        schema,
        results=results,
        payload=payload,
        in_place=in_place or {},
        **functions,
    )
    if operator._schema.returns:
        declaration.check(call, f"define_operator: {name}:")
    return call


def _schema(
    name: str,
    target: str,
    results: Callable[..., object] | None,
    payload: Callable[..., object] | None,
) -> Schema | None:
    """The schema of a kernel by its name; None for one of XLA's own targets."""
    if payload is not None:
        if results is None:
            raise TypeError(f"define_operator: {name}: payload requires results")
        return None
    schema = kernels.schema(target)
    if schema is None:
        names = {each.name for each in kernels.registered_targets()}
        raise ValueError(
            f"define_operator: {name}: no kernel {target!r} made with torch_xla_ext/kernel.h is "
            f"registered for {device.current().platform!r}"
            + kernel_symbols.did_you_mean(target, names)
            + "; register one before (torch_xla_gpu.register_kernel), or pass results and payload "
            "for one of XLA's own targets"
        )
    if results is not None:
        raise declaration.results_follow(name, target)
    return dataclasses.replace(schema, caller=name)


def _promoting(operator: torch._ops.OpOverload) -> Callable[..., Tensors]:
    keys = torch._C.DispatchKeySet(torch._C._parse_dispatch_key(_AUTOCAST_KEY))

    def run(*args: Value) -> Tensors:
        tensors = [a for a in args if isinstance(a, torch.Tensor) and a.dtype in _AUTOCAST_DTYPES]
        widest = max((t.dtype for t in tensors), key=lambda dtype: dtype.itemsize, default=None)
        if len({t.dtype for t in tensors} - {torch.float32}) > 1:
            widest = torch.float32  # neither of float16 and bfloat16 holds the other
        cast = [a.to(widest) if any(a is t for t in tensors) else a for a in args]
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*cast)

    return run
