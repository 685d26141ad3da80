"""Define PyTorch operators that call kernels: ``torch.ops.<namespace>.<name>``.

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

from xla_kernels import front_end
from xla_kernels.operator import autograd, batching, declaration, tensor_checks, torch_library
from xla_kernels.operator.checked import OperatorCall, Result
from xla_kernels.operator.tensor_checks import Tensors, Value
from xla_kernels.traits import NONE, Traits

if TYPE_CHECKING:
    from xla_kernels.cuda_source.kernel import CudaKernel

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
    traits: Traits = NONE,
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Tensors] | None = None,
    jvp: Callable[..., Tensors] | None = None,
    vmap: Callable[..., tuple[Tensors, int | tuple[int | None, ...]]] | None = None,
    vmap_method: str | None = None,
    promotes: bool = False,
    environment: Sequence[str] | None = None,
    sharding_rule: str | Callable[..., str] | None = None,
    replace: bool = False,
) -> torch._ops.OpOverload:
    """Define a PyTorch operator that calls a kernel, as a pure function of its arguments.

    The kernel uses torch_xla_ext/kernel.h, and is linked into the wheel or already registered
    (`register_kernel`). Its operands are the operator's tensor arguments, with the same names in
    the same order; its parameters are the other arguments with the same names. The operator returns
    the kernel's first results; further results are workspaces. Operands are made contiguous. There
    must be at least one, and all must be on the same device. Dtypes and shapes are checked against
    the kernel's signature first, for XLA, CPU, CUDA, meta and fake tensors alike, and the results'
    shapes and dtypes follow from it.

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
            does not support. It also receives meta and fake tensors, whose sizes may be symbolic.
        attributes: returns the parameters that are not arguments of the operator, or differ from
            them.
        sizes: returns, by name, sizes in the results that do not follow from operands or
            parameters, such as a workspace's, and for which the kernel has no function
            (XLA_KERNEL_SIZE). The sizes of its arguments are known.
        results: for an untyped kernel that does not use kernel.h: returns the shape and dtype of
            each result.
        payload: for such a kernel: returns the kernel's payload, which must state which operands
            are absent. The sizes of its arguments are known.
        traits: further properties of the calls, such as layouts of results (xla_kernels.Traits).
        setup_context, backward, jvp: the derivatives, as in torch.autograd.Function. A missing one
            raises NotImplementedError when it is needed.
        vmap: the batching rule, as in torch.library.register_vmap. Before it is called, one example
            of the batch is checked. Without it and without `vmap_method`, torch.vmap calls the
            operator in a loop and warns.
        vmap_method: a batching rule by name, as in JAX: "sequential" calls the operator for each
            example; "expand_dims" calls it once, with the batch as the first dimension of batched
            tensors, and a first dimension of 1 for the others; "broadcast_all" calls it once, with
            the batch as the first dimension of all tensors. For the latter two, the kernel must
            accept and return leading dimensions (``x: F32[*batch, n]``).
        promotes: whether, under torch.autocast, floating-point arguments are cast to the widest of
            their dtypes, as for torch.addcmul.
        environment: the environment variables that `check`, `attributes`, `sizes`, `results`,
            `payload` and a function `sharding_rule` read, often (). Passing it promises that these
            functions otherwise depend only on the arguments (for tensors: dtype, shape and device),
            so that their results are cached for calls with XLA tensors. With None, they run at
            every call.
        sharding_rule: the dimensions of sharded XLA tensors that devices may share, as in ``"n (k
            g) _, _ k -> n (k g) _"``: the named dimensions, whose indices the kernel computes
            independently (torch_xla_ext.sharding.rule describes the notation, which omits
            workspaces); or a function of the operator's arguments, by name, that returns the rule.
            XLA asks for it when it compiles a program for several devices and has propagated the
            user's shardings. Each device then runs the kernel on its shard, and the functions above
            are also called with meta tensors of the shards' shapes. Without it, sharded operands
            are gathered, with a warning.
        replace: whether to replace an operator that define_operator has defined under this name,
            for example in a notebook cell that is run again. Compiled programs keep the old
            operator.

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
    kernel = declaration.kernel_schema(name, target, results, payload)
    if vmap is not None and vmap_method is not None:
        raise TypeError(f"define_operator: {name}: pass vmap or vmap_method, not both")
    library = torch_library.open_library(name, replace)
    try:
        operator = torch_library.declare(library, name, schema)
        call = _call_type(target)(
            operator,
            str(target),
            kernel,
            check=check,
            attributes=attributes,
            sizes=sizes,
            results=results,
            payload=payload,
            traits=traits,
            environment=environment,
            sharding_rule=sharding_rule,
            in_place={
                i: result.name
                for i, result in enumerate(kernel.results if kernel else ())
                if result.in_place
            },
        )
        declaration.check(call)
        if vmap_method is not None:
            vmap = batching.rule_of(call, vmap_method)
    except BaseException:
        torch_library.close_library(name)
        raise
    _implement(library, call, autograd.make_kernel(operator, setup_context, backward, jvp))
    if vmap is not None:
        rule = batching.checking_one_example(call, vmap)
        torch.library.register_vmap(name, rule, lib=library)
    if promotes:
        _promote(library, operator)
    return operator


def define_in_place_operator(
    schema: str,
    *,
    target: str | CudaKernel,
    check: Callable[..., None] | None = None,
    attributes: Callable[..., Mapping[str, object]] | None = None,
    environment: Sequence[str] | None = None,
    sharding_rule: str | Callable[..., str] | None = None,
    replace: bool = False,
) -> torch._ops.OpOverload:
    """Define a PyTorch operator that calls a kernel and writes to some of its arguments.

    The kernel's results are the new values of these arguments, in their order and in their buffers.
    Written arguments must be contiguous, unless they are XLA tensors, and must not overlap. Another
    argument may share memory with a written one: the kernel reads its old value. The operator has
    no derivatives.

    This also defines ``torch.ops.<namespace>.<name>_functional``, which returns the new values.
    PyTorch's functionalization calls it instead, for XLA tensors and under torch.compile and
    torch.export. XLA makes no copy, because the kernel's results alias its operands and torch_xla
    donates the tensors' buffers to the program.

    Args:
        schema: as in `define_operator`, but returning nothing: ``"my_ns::fill(Tensor value,
            Tensor(a!) out) -> ()"``.
        target, check, attributes, environment, sharding_rule, replace: as in `define_operator`.

    Returns:
        The operator, ``torch.ops.<namespace>.<name>.default``.

    Raises:
        As `define_operator`.
    """
    name = declaration.qualified_name(schema)
    functional_name, functional_schema = declaration.functional_form(name, schema)
    kernel = declaration.kernel_schema(name, target)
    front = front_end.current()
    library = torch_library.open_library(name, replace)
    try:
        operator = torch_library.declare(library, name, schema)
        functional = torch_library.declare(library, functional_name, functional_schema)
        declared = operator._schema.arguments
        names = [argument.name for argument in declared]
        written = [i for i, argument in enumerate(declared) if argument.is_write]
        functional_call = _call_type(target)(
            functional,
            str(target),
            kernel,
            check=check,
            attributes=attributes,
            environment=environment,
            sharding_rule=sharding_rule,
            in_place={result: names[i] for result, i in enumerate(written)},
        )
        declaration.check(functional_call)
    except BaseException:
        torch_library.close_library(name)
        raise

    def check_layout(args: Sequence[Value]) -> None:
        for i in written:
            tensor_checks.require_contiguous(name, names[i], args[i])
        for i, j in itertools.combinations(written, 2):
            tensor_checks.require_no_overlap(name, names[j], args[j], names[i], args[i])

    def check_in_place(**args: Value) -> None:
        if check is not None:
            check(**args)
        check_layout(tuple(args.values()))

    call = _replace(functional_call, operator=operator, check=check_in_place)

    def new_values(args: tuple[Value, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        results = functional(*args)
        check_layout(args)  # the functional form checks everything else
        results = results if isinstance(results, tuple) else (results,)
        return [(args[i], result) for i, result in zip(written, results, strict=True)]

    differentiated = autograd.make_kernel(functional, None, None, None)
    registered = _implement(library, functional_call, differentiated)
    front.implement_in_place(library, call, registered, new_values)
    differentiated = autograd.make_in_place_kernel(operator, written)
    front.differentiate(library, operator, differentiated, written)
    torch.library.register_fake(name, lambda *args: call.checked(args) and None, lib=library)
    return operator


def _call_type(target: str | CudaKernel) -> Callable[..., OperatorCall]:
    front = front_end.current()
    if isinstance(target, str):
        return front.operator_call
    return functools.partial(front.cuda_kernel_operator_call, kernel=target)


def _implement(
    library: torch.library.Library, call: OperatorCall, differentiated: Callable[..., object]
) -> object:
    front = front_end.current()
    registered = front.implement(library, call)
    front.differentiate(library, call.operator, differentiated)
    torch.library.register_fake(call.operator.name(), call.on_fake, lib=library)
    return registered


def _promote(library: torch.library.Library, operator: torch._ops.OpOverload) -> None:
    """Make the operator promote dtypes under autocast, as torch's promoting operators do."""
    keys = front_end.current().autocast_keys
    sets = (torch._C.DispatchKeySet(torch._C._parse_dispatch_key(key)) for key in keys)
    key_set = functools.reduce(torch._C.DispatchKeySet.__or__, sets)

    def run_promoted(*args: Value) -> Tensors:
        with torch._C._ExcludeDispatchKeyGuard(key_set):
            return operator(*_promoted(args))

    for key in keys:
        library.impl(operator, run_promoted, key)


def _promoted(args: tuple[Value, ...]) -> tuple[Value, ...]:
    def is_eligible(value: Value) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype in _AUTOCAST_DTYPES

    dtypes = {value.dtype for value in args if is_eligible(value)}
    if len(dtypes) < 2:
        return args
    widest = functools.reduce(torch.promote_types, dtypes)
    return tuple(value.to(widest) if is_eligible(value) else value for value in args)
