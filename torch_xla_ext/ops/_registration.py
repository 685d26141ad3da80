"""From a kernel to an operator of PyTorch: ``torch.ops.xla_gpu.<name>``.

An operator's module says what its kernel computes; `define` registers what follows from that with
torch.library. The same kernel runs everywhere:

- XLA tensors: XLA calls the target, "CUDA" or "Host", as a custom call of the compiled program;
- CPU and CUDA tensors: the target is called directly, on CUDA on torch's current stream;
- meta and fake tensors (torch.compile, torch.export): the results' shapes and dtypes.
"""

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from torch_xla_ext.ops import _arguments, _autograd, _functionalization
from torch_xla_ext.ops._arguments import Tensors, Value
from torch_xla_ext.ops._kernel_call import KernelCall, Result

NAMESPACE = "xla_gpu"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


class VmapInfo(Protocol):
    """What torch.library.register_vmap gives a batching rule first."""

    batch_size: int
    randomness: str


# The keys by which torch dispatches under torch.autocast.
_AUTOCAST_KEYS = ("AutocastCPU", "AutocastCUDA", "AutocastXLA")
_AUTOCAST_KEY_SET = functools.reduce(
    torch._C.DispatchKeySet.__or__,
    [torch._C.DispatchKeySet(torch._C._parse_dispatch_key(key)) for key in _AUTOCAST_KEYS],
)
# What autocast casts between: it leaves float64 alone.
_AUTOCAST_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def define(
    schema: str,
    *,
    target: str,
    check: Callable[..., None],
    results: Callable[..., Sequence[Result]],
    internal_results: Callable[..., Sequence[Result]] | None = None,
    attributes: Callable[..., Mapping[str, object]] | None = None,
    payload: Callable[..., bytes] | None = None,
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Tensors] | None = None,
    jvp: Callable[..., Tensors] | None = None,
    vmap: Callable[..., tuple[Tensors, int | tuple[int | None, ...]]] | None = None,
    promotes: bool = False,
) -> torch._ops.OpOverload:
    """Defines the operator ``torch.ops.xla_gpu.<name>``, a pure function of its arguments.

    The kernel's operands are the operator's tensor arguments, in their order and made contiguous;
    an optional one may be absent. There is at least one, and all are on one device: other calls are
    refused before anything else happens.

    `check`, `results` and what follows them, to `payload`, are called with the operator's arguments
    by their names: each takes those that it needs, and ``**others``.

    Args:
        schema: name, arguments and results in torch's notation,
            ``"simple_add(Tensor a, Tensor b) -> Tensor"``, without keyword-only arguments.
        target: the kernel's name, registered for "Host" and "CUDA" (untyped, API version 3).
        check: raises TypeError or ValueError if the kernel can not do what the arguments say
            (torch_xla_ext.ops._arguments). It sees meta and fake tensors too, whose sizes may be
            symbolic. The others get checked arguments.
        results: returns the shape and dtype of each result.
        internal_results: of arguments of known sizes, returns the same of the results that the
            kernel has beyond these, and that nobody sees: a workspace.
        attributes: returns the parameters of a kernel that is made with torch_xla_ext/kernel.h;
            without it there are none.
        payload: in its place for any other kernel: of arguments of known sizes, returns what the
            kernel is handed. It has to tell which operands are absent.
        setup_context, backward, jvp: the derivatives, as of torch.autograd.Function. A missing one
            raises NotImplementedError when it is needed.
        vmap: the batching rule, as of torch.library.register_vmap. Without it, torch.vmap calls
            the operator in a loop, and warns.
        promotes: whether, under torch.autocast, arguments of several floating dtypes are cast to
            the widest of them, as torch.addcmul's are.
    """
    operator = _declare(schema)
    call = KernelCall(operator, target, check, results, internal_results, attributes, payload)
    _implement(call)
    derivative = _autograd.make_kernel(operator, setup_context, backward, jvp)
    _LIBRARY.impl(operator, derivative, "Autograd")
    if vmap is not None:
        torch.library.register_vmap(operator.name(), vmap, lib=_LIBRARY)

    def run_promoted(*args: Value) -> Tensors:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEY_SET):
            return operator(*_promoted(args))

    if promotes:
        for key in _AUTOCAST_KEYS:
            _LIBRARY.impl(operator, run_promoted, key)
    return operator


def define_in_place(
    schema: str,
    *,
    target: str,
    check: Callable[..., None],
    attributes: Callable[..., Mapping[str, object]] | None = None,
) -> torch._ops.OpOverload:
    """Defines the operator ``torch.ops.xla_gpu.<name>``, which writes to some of its arguments.

    The kernel's results are the new values of these arguments, in their order, in their buffers.
    They have to be contiguous, unless they are XLA tensors, and may not overlap. Another argument
    may lie in one of them: its old value is used. Nothing is differentiable.

    It also defines ``torch.ops.xla_gpu.<name>_functional``, which returns the new values: torch's
    functionalization turns the one into the other, for XLA tensors and under torch.compile and
    torch.export. XLA makes no copy of it, for the kernel's results alias its operands, and
    torch_xla donates the tensors' buffers to the program.

    Args:
        schema: as of `define`, ``"fill(Tensor value, Tensor(a!) out) -> ()"``; it returns nothing.
        target, check, attributes: as of `define`.
    """
    operator = _declare(schema)
    names = [argument.name for argument in operator._schema.arguments]
    written = [i for i, argument in enumerate(operator._schema.arguments) if argument.is_write]
    pure = re.fullmatch(r"(\w+)\((.*)\) -> \(\)", re.sub(r"\(\w!\)", "", schema))
    returns = ", ".join(["Tensor"] * len(written))
    functional = _declare(f"{pure[1]}_functional({pure[2]}) -> ({returns})")

    def check_layout(args: tuple[Value, ...]) -> None:
        for i in written:
            if args[i].device.type != "xla":  # whose layout is not torch's business
                _arguments.require_contiguous(operator.name(), names[i], args[i])
        for i, j in itertools.combinations(written, 2):
            _arguments.require_no_overlap(operator.name(), names[j], args[j], names[i], args[i])

    def check_in_place(**args: Value) -> None:
        check(**args)
        check_layout(tuple(args.values()))

    make_call = functools.partial(
        KernelCall,
        target=target,
        results=lambda **args: [],
        attributes=attributes,
        written=[names[i] for i in written],
        name=operator.name(),
    )
    in_place_call = make_call(operator, check=check_in_place)
    functional_call = make_call(functional, check=check)

    def new_values(args: tuple[Value, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor that is written to, with its new value."""
        results = functional(*args)
        check_layout(args)  # the functional form has checked everything else
        results = results if isinstance(results, tuple) else (results,)
        return [(args[i], result) for i, result in zip(written, results, strict=True)]

    def run_functionalized(*args: Value) -> None:
        for tensor, result in new_values(_functionalization.unsharded(args)):
            _functionalization.replace(tensor, result)

    def run_xla(*args: Value) -> None:
        """Runs without functionalization, XLA_DISABLE_FUNCTIONALIZATION=1."""
        for tensor, result in new_values(args):
            tensor.copy_(result)

    _implement(functional_call)
    _LIBRARY.impl(functional, _autograd.make_kernel(functional, None, None, None), "Autograd")
    _LIBRARY.impl(operator, in_place_call.in_place_on_cpu, "CPU")
    _LIBRARY.impl(operator, in_place_call.in_place_on_cuda, "CUDA")
    _LIBRARY.impl(operator, run_xla, "XLA")
    _LIBRARY.impl(operator, run_functionalized, "Functionalize")
    _LIBRARY.impl(operator, _autograd.make_in_place_kernel(operator, written), "Autograd")
    torch.library.register_fake(
        operator.name(), lambda *args: in_place_call.checked(args) and None, lib=_LIBRARY
    )
    return operator


def _declare(schema: str) -> torch._ops.OpOverload:
    _LIBRARY.define(
        schema,
        # flexible_layout: any strides will do, so inductor need not keep those of the operands.
        tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
    )
    return getattr(torch.ops.xla_gpu, schema.partition("(")[0]).default


def _implement(call: KernelCall) -> None:
    _LIBRARY.impl(call.operator, call.on_xla, "XLA")
    _LIBRARY.impl(call.operator, call.on_cpu, "CPU")
    _LIBRARY.impl(call.operator, call.on_cuda, "CUDA")
    torch.library.register_fake(call.operator.name(), call.on_fake, lib=_LIBRARY)


def _promoted(args: tuple[Value, ...]) -> tuple[Value, ...]:
    """Casts as autocast does for torch's own operators that promote."""

    def is_eligible(value: Value) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype in _AUTOCAST_DTYPES

    dtypes = {value.dtype for value in args if is_eligible(value)}
    if len(dtypes) < 2:
        return args
    widest = functools.reduce(torch.promote_types, dtypes)
    return tuple(value.to(widest) if is_eligible(value) else value for value in args)
