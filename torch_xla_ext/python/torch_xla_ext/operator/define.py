"""Defines PyTorch operators that call kernels: ``torch.ops.<namespace>.<name>``.

The kernel's signature determines the operator's arguments and results; arguments of
`define_operator` add what a signature cannot express. The same kernel runs everywhere:

- XLA tensors: XLA calls the target, "CUDA" or "Host", as a custom call of the compiled program;
- CPU and CUDA tensors: the target is called directly, on CUDA on PyTorch's current stream;
- meta and fake tensors (torch.compile, torch.export): only the results' shapes and dtypes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as _replace
from typing import TYPE_CHECKING

import torch
import torch_xla

from torch_xla_ext.operator import (
    autograd,
    batching,
    binding,
    declaration,
    functionalization,
    tensor_checks,
    torch_library,
)
from torch_xla_ext.operator.batching import VmapInfo
from torch_xla_ext.operator.checked import Result
from torch_xla_ext.operator.kernel_call import KernelCall
from torch_xla_ext.operator.tensor_checks import Tensors, Value
from torch_xla_ext.sharding import rule as rules
from torch_xla_ext.signature.schema import Schema

if TYPE_CHECKING:
    from torch_xla_ext.launchers.cuda_source.kernel import CudaKernel

_XLAC = torch_xla._XLAC


# The keys by which torch dispatches under torch.autocast.
_AUTOCAST_KEYS = ("AutocastCPU", "AutocastCUDA", "AutocastXLA")
_AUTOCAST_KEY_SET = functools.reduce(
    torch._C.DispatchKeySet.__or__,
    [torch._C.DispatchKeySet(torch._C._parse_dispatch_key(key)) for key in _AUTOCAST_KEYS],
)
# The dtypes that autocast casts between; it leaves float64 alone.
_AUTOCAST_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


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
    vmap_method: str | None = None,
    promotes: bool = False,
    environment: Sequence[str] | None = None,
    sharding_rule: str | None = None,
    replace: bool = False,
) -> torch._ops.OpOverload:
    """Defines a PyTorch operator that calls a kernel, as a pure function of its arguments.

    The kernel uses torch_xla_ext/kernel.h and is linked into the wheel or already registered
    (`register_kernel`). Its operands are the operator's tensor arguments, with the same names in
    the same order. Its parameters are the other arguments of the same names. Its first results
    are what the operator returns; further results are workspaces. Operands are made
    contiguous. There must be at least one, and all must be on the same device. Dtypes and shapes
    are checked against the kernel's signature first, for XLA, CPU, CUDA, meta and fake tensors
    alike, and the results' shapes and dtypes follow from it.

    If other kernels are registered under the same name later, the operator calls the last one with
    the same signature and parameters.

    `check` and the functions after it, up to `payload`, are called with the operator's arguments
    by name: each declares those that it needs, and ``**others``.

    Args:
        schema: namespace, name, arguments and results in PyTorch's notation,
            ``"my_ns::scale(Tensor x, float factor=1.0) -> Tensor"``, without keyword-only
            arguments.
        target: the kernel's name, or a `cuda_kernel` with a signature, grid and block.
        check: raises TypeError or ValueError for calls that the signature allows but the kernel
            does not support. It also gets meta and fake tensors, whose sizes may be symbolic.
        attributes: returns parameters that are not arguments of the operator, or that differ from
            them.
        sizes: gets arguments of known sizes and returns, by name, sizes in the results that do not
            follow from operands or parameters, such as a workspace's, and for which the kernel has
            no function (XLA_KERNEL_SIZE).
        results: for an untyped kernel that does not use kernel.h: returns the shape and dtype of
            each result.
        payload: for such a kernel: gets arguments of known sizes and returns the kernel's payload,
            which must tell which operands are absent.
        setup_context, backward, jvp: the derivatives, as in torch.autograd.Function. A missing one
            raises NotImplementedError when it is needed.
        vmap: the batching rule, as in torch.library.register_vmap. Before it is called, one example
            of the batch is checked. Without it and without `vmap_method`, torch.vmap calls the
            operator in a loop and warns.
        vmap_method: a batching rule by name, as in JAX: "sequential" calls the operator for each
            example; "expand_dims" calls it once, with the batch as the first dimension of the
            tensors that have it, and a first dimension of 1 of the others; "broadcast_all" once,
            with the batch as the first dimension of all tensors. For the latter two, the kernel
            takes dimensions in front (``x: F32[*batch, n]``) and returns them.
        promotes: whether, under torch.autocast, floating-point arguments are cast to the widest of
            their dtypes, as for torch.addcmul.
        environment: the environment variables that `check`, `attributes`, `sizes`, `results` and
            `payload` read, often none. It promises that these functions depend on nothing else but
            the arguments (of tensors: dtype, shape and device), so that their results can be cached
            for calls with XLA tensors. None makes no such promise: they run at every call.
        sharding_rule: the dimensions of sharded XLA tensors that devices may share, as
            in ``"n (k g) _, _ k -> n (k g) _"``: those with a name, whose indices the kernel
            computes independently (torch_xla_ext.sharding.rule describes the notation, which omits
            workspaces). Each device then runs the kernel on its shard, and all functions here are
            also called with meta tensors of the shards' shapes. Without it, sharded operands are
            gathered, with a warning.
        replace: whether to replace an operator that was defined here under this name, for example
            in a notebook cell that is run again. Compiled programs keep the former operator.

    Returns:
        The operator, ``torch.ops.<namespace>.<name>.default``.

    Raises:
        TypeError, ValueError: the operator does not match the kernel, or no such kernel is
            registered.
        RuntimeError: the operator is already defined, or PyTorch refuses its schema.

    Example:
        >>> add = define_operator(
        ...     "my_ns::plus(Tensor a, Tensor b) -> Tensor",
        ...     target="XlaGpuSimpleAdd",
        ...     backward=lambda ctx, grad: (grad, grad),
        ... )
        >>> torch.ops.my_ns.plus(torch.ones(2, device="xla"), torch.ones(2, device="xla")).cpu()
        tensor([2., 2.])
    """
    name = declaration.qualified_name(schema)
    call_type, kernel = _call_type(name, target, results, payload)
    if vmap is not None and vmap_method is not None:
        raise TypeError(f"define_operator: {name}: pass vmap or vmap_method, not both")
    library = torch_library.open_library(name, replace)
    try:
        operator = torch_library.declare(library, name, schema)
        call = call_type(
            operator, str(target), kernel, check, attributes, sizes, results, payload, environment
        )
        call = _replace(call, sharding_rule=_parsed(name, sharding_rule))
        if kernel is not None:
            in_place = {
                i: result.name for i, result in enumerate(kernel.results) if result.in_place
            }
            call = _replace(call, in_place=in_place)
        binding.check(call)
        if vmap_method is not None:
            vmap = batching.rule_of(call, vmap_method)
    except BaseException:
        torch_library.close_library(name)
        raise
    _implement(library, call)
    _differentiate(operator, autograd.make_kernel(operator, setup_context, backward, jvp))
    if vmap is not None:
        torch.library.register_vmap(name, _checking_one_example(call, vmap), lib=library)

    def run_promoted(*args: Value) -> Tensors:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEY_SET):
            return operator(*_promoted(args))

    if promotes:
        for key in _AUTOCAST_KEYS:
            library.impl(operator, run_promoted, key)
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

    The kernel's results are the new values of these arguments, in their order and in their buffers.
    The arguments must be contiguous, unless they are XLA tensors, and must not overlap. Another
    argument may share memory with one of them: its old value is used. The operator has no
    derivatives.

    This also defines ``torch.ops.<namespace>.<name>_functional``, which returns the new values.
    PyTorch's functionalization replaces the operator by it, for XLA tensors and under torch.compile
    and torch.export. XLA makes no copy, because the kernel's results alias its operands and
    torch_xla donates the tensors' buffers to the program.

    Args:
        schema: as in `define_operator`, ``"my_ns::fill(Tensor value, Tensor(a!) out) -> ()"``; it
            returns nothing.
        target, check, attributes, environment, sharding_rule, replace: as in `define_operator`.

    Returns:
        The operator, ``torch.ops.<namespace>.<name>.default``.

    Raises:
        As `define_operator`.
    """
    name = declaration.qualified_name(schema)
    functional_name, functional_schema = declaration.functional_form(name, schema)
    call_type, kernel = _call_type(name, target)
    library = torch_library.open_library(name, replace)
    try:
        operator = torch_library.declare(library, name, schema)
        functional = torch_library.declare(library, functional_name, functional_schema)
        declared = operator._schema.arguments
        names = [argument.name for argument in declared]
        written = [i for i, argument in enumerate(declared) if argument.is_write]
        in_place = {result: names[i] for result, i in enumerate(written)}
        functional_call = call_type(
            functional,
            str(target),
            kernel,
            check,
            attributes,
            environment=environment,
            in_place=in_place,
            sharding_rule=_parsed(name, sharding_rule),
        )
        binding.check(functional_call)
    except BaseException:
        torch_library.close_library(name)
        raise

    def check_layout(args: Sequence[Value]) -> None:
        for i in written:
            if args[i].device.type != "xla":  # PyTorch does not know the layout of an XLA tensor
                tensor_checks.require_contiguous(name, names[i], args[i])
        for i, j in itertools.combinations(written, 2):
            tensor_checks.require_no_overlap(name, names[j], args[j], names[i], args[i])

    def check_in_place(**args: Value) -> None:
        if check is not None:
            check(**args)
        check_layout(tuple(args.values()))

    in_place_call = _replace(functional_call, operator=operator, check=check_in_place)

    def new_values(args: tuple[Value, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor that is written to, with its new value."""
        results = functional(*args)
        check_layout(args)  # the functional form has checked everything else
        results = results if isinstance(results, tuple) else (results,)
        return [(args[i], result) for i, result in zip(written, results, strict=True)]

    def run_functionalized(*args: Value) -> None:
        for tensor, result in new_values(functionalization.unsharded(args)):
            functionalization.replace(tensor, result)

    def run_xla(*args: Value) -> None:
        """Runs without functionalization, XLA_DISABLE_FUNCTIONALIZATION=1."""
        for tensor, result in new_values(args):
            tensor.copy_(result)

    calls = _implement(library, functional_call)
    _differentiate(functional, autograd.make_kernel(functional, None, None, None))
    library.impl(operator, in_place_call.in_place_on_cpu, "CPU")
    library.impl(operator, in_place_call.in_place_on_cuda, "CUDA")
    library.impl(operator, run_xla, "XLA")
    _keep(
        operator,
        _XLAC._xla_register_operator_in_place,
        functional=calls,
        run=run_functionalized,
        written=written,
    )
    _differentiate(operator, autograd.make_in_place_kernel(operator, written), written)
    torch.library.register_fake(
        name, lambda *args: in_place_call.checked(args) and None, lib=library
    )
    return operator


def _call_type(
    name: str,
    target: str | CudaKernel,
    results: Callable[..., object] | None = None,
    payload: Callable[..., object] | None = None,
) -> tuple[Callable[..., KernelCall], Schema | None]:
    """What makes the operator's calls, and its kernel's schema."""
    if not isinstance(target, str):
        from torch_xla_ext.operator.cuda_kernel_call import CudaKernel, CudaKernelCall

        if not isinstance(target, CudaKernel):
            raise TypeError(
                f"define_operator: {name}: target must be a str or a cuda_kernel, but is of type "
                f"{type(target).__name__}"
            )
        kernel = declaration.cuda_kernel_schema(name, target, results, payload)
        return functools.partial(CudaKernelCall, kernel=target), kernel
    return KernelCall, binding.kernel_schema(name, target, results, payload)


def _parsed(name: str, sharding_rule: str | None) -> rules.Rule | None:
    if sharding_rule is None:
        return None
    try:
        return rules.parse(sharding_rule)
    except (TypeError, ValueError) as error:
        raise type(error)(f"define_operator: {name}: {error}") from None


def _keep(
    operator: torch._ops.OpOverload, register: Callable[..., object], **how: object
) -> object:
    """Registers a kernel of csrc/custom_call/dispatcher_kernels.h, for as long as its operator."""
    schema = operator._schema
    kernel = register(name=schema.name, overload=schema.overload_name, **how)
    torch_library.keep(schema.name, kernel)
    return kernel


def _differentiate(
    operator: torch._ops.OpOverload, kernel: Callable[..., object], written: Sequence[int] = ()
) -> None:
    """Makes PyTorch call `kernel` if an argument has a gradient or a tangent."""
    _keep(operator, _XLAC._xla_register_operator_autograd, differentiate=kernel, written=written)


def _implement(library: torch.library.Library, call: KernelCall) -> object:
    """Returns the registration of the calls that XLA makes."""
    calls = _keep(
        call.operator,
        _XLAC._xla_register_operator,
        prepare=call.prepared,
        run=call.on_xla,
        environment=call.remembered_environment,
    )
    library.impl(call.operator, call.on_cpu, "CPU")
    library.impl(call.operator, call.on_cuda, "CUDA")
    torch.library.register_fake(call.operator.name(), call.on_fake, lib=library)
    return calls


def _checking_one_example(call: KernelCall, rule: Callable[..., object]) -> Callable[..., object]:
    """The batching rule after checks of one example: what the caller's function sees.

    An error has to be about that, and not about a batch of which the caller knows nothing.
    """

    def batched(info: VmapInfo, in_dims: Sequence[int | None], *args: Value) -> object:
        args = autograd.with_defaults(call.operator, args)
        in_dims = (*in_dims, *[None] * (len(args) - len(in_dims)))
        if info.batch_size > 0:
            pairs = zip(args, in_dims, strict=True)
            call.checked([arg if dim is None else arg.select(dim, 0) for arg, dim in pairs])
        return rule(info, in_dims, *args)

    return batched


def _promoted(args: tuple[Value, ...]) -> tuple[Value, ...]:
    """Casts as autocast does for torch's own operators that promote."""

    def is_eligible(value: Value) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype in _AUTOCAST_DTYPES

    dtypes = {value.dtype for value in args if is_eligible(value)}
    if len(dtypes) < 2:
        return args
    widest = functools.reduce(torch.promote_types, dtypes)
    return tuple(value.to(widest) if is_eligible(value) else value for value in args)
