"""From a kernel to an operator of PyTorch: ``torch.ops.xla_gpu.<name>``.

An operator's module says what its kernel computes; `define` registers what follows from that with
torch.library. The same kernel runs everywhere:

- XLA tensors: XLA calls the target, "CUDA" or "Host", as a custom call of the compiled program;
- CPU and CUDA tensors: the target is called directly, on CUDA on torch's current stream;
- meta and fake tensors (torch.compile, torch.export): the results' shapes and dtypes.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch_xla

from torch_xla_ext.calls import custom_call
from torch_xla_ext.ops import _arguments, _autograd
from torch_xla_ext.ops._arguments import Tensors, Value

NAMESPACE = "xla_gpu"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")

# A result's shape and dtype.
Result = tuple[Sequence[int], torch.dtype]


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
    payload: Callable[..., bytes],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Tensors] | None = None,
    jvp: Callable[..., Tensors] | None = None,
    vmap: Callable[..., tuple[Tensors, int | tuple[int | None, ...]]] | None = None,
    promotes: bool = False,
) -> torch._ops.OpOverload:
    """Defines the operator ``torch.ops.xla_gpu.<name>``, a pure function of its arguments.

    The kernel's operands are the operator's tensor arguments, in their order and made contiguous;
    an optional one that is absent is left out, which the payload has to tell. There is at least
    one, and all are on one device: other calls are refused before anything else happens.

    Args:
        schema: name, arguments and results in torch's notation,
            ``"simple_add(Tensor a, Tensor b) -> Tensor"``, without keyword-only arguments.
        target: the kernel's name, registered for "Host" and "CUDA" (untyped, API version 3).
        check: called with the operator's arguments, raises TypeError or ValueError if the kernel
            can not do what they say (torch_xla_ext.ops._arguments). It sees meta and fake tensors
            too, whose sizes may be symbolic.
        results: called with checked arguments, returns the shape and dtype of each result.
        payload: called with checked arguments of known sizes, returns the kernel's parameters.
        setup_context, backward, jvp: the derivatives, as of torch.autograd.Function. A missing one
            raises NotImplementedError when it is needed.
        vmap: the batching rule, as of torch.library.register_vmap. Without it, torch.vmap calls
            the operator in a loop, and warns.
        promotes: whether, under torch.autocast, arguments of several floating dtypes are cast to
            the widest of them, as torch.addcmul's are.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(
        schema,
        # flexible_layout: any strides will do, so inductor need not keep those of the operands.
        tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
    )
    operator: torch._ops.OpOverload = getattr(torch.ops.xla_gpu, name).default
    arguments = operator._schema.arguments
    is_single = len(operator._schema.returns) == 1

    def complete(args: tuple[Value, ...]) -> tuple[Value, ...]:
        """Adds the defaults that the dispatcher leaves out."""
        return args + tuple(argument.default_value for argument in arguments[len(args) :])

    def checked_operands(args: tuple[Value, ...]) -> list[torch.Tensor]:
        tensors = [
            (argument.name, value)
            for argument, value in zip(arguments, args, strict=True)
            if isinstance(value, torch.Tensor)
        ]
        _arguments.require_one_device(operator.name(), tensors)
        check(*args)
        return [tensor for _, tensor in tensors]

    def returned(tensors: Sequence[torch.Tensor]) -> Tensors:
        return tensors[0] if is_single else tuple(tensors)

    def run_fake(*args: Value) -> Tensors:
        args = complete(args)
        first = checked_operands(args)[0]
        return returned([first.new_empty(shape, dtype=dtype) for shape, dtype in results(*args)])

    def run_xla(*args: Value) -> Tensors:
        args = complete(args)
        operands = checked_operands(args)
        return returned(custom_call(target, operands, results(*args), payload=payload(*args)))

    def run_directly(
        platform: str, operands: list[torch.Tensor], args: tuple[Value, ...], stream: int = 0
    ) -> Tensors:
        outputs = [
            torch.empty(shape, dtype=dtype, device=operands[0].device)
            for shape, dtype in results(*args)
        ]
        torch_xla._XLAC._xla_call_custom_call_target(
            target,
            platform,
            [operand.contiguous() for operand in operands],
            payload(*args),
            outputs,
            stream,
        )
        return returned(outputs)

    def run_cpu(*args: Value) -> Tensors:
        args = complete(args)
        return run_directly("Host", checked_operands(args), args)

    def run_cuda(*args: Value) -> Tensors:
        args = complete(args)
        operands = checked_operands(args)
        with torch.cuda.device(operands[0].device):
            stream = torch.cuda.current_stream().cuda_stream
            return run_directly("CUDA", operands, args, stream)

    def run_promoted(*args: Value) -> Tensors:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEY_SET):
            return operator(*_promoted(args))

    _LIBRARY.impl(name, run_xla, "XLA")
    _LIBRARY.impl(name, run_cpu, "CPU")
    _LIBRARY.impl(name, run_cuda, "CUDA")
    _LIBRARY.impl(name, _autograd.make_kernel(operator, setup_context, backward, jvp), "Autograd")
    qualified_name = f"{NAMESPACE}::{name}"
    torch.library.register_fake(qualified_name, run_fake, lib=_LIBRARY)
    if vmap is not None:
        torch.library.register_vmap(qualified_name, vmap, lib=_LIBRARY)
    if promotes:
        for key in _AUTOCAST_KEYS:
            _LIBRARY.impl(name, run_promoted, key)
    return operator


def _promoted(args: tuple[Value, ...]) -> tuple[Value, ...]:
    """Casts as autocast does for torch's own operators that promote."""

    def is_eligible(value: Value) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype in _AUTOCAST_DTYPES

    dtypes = {value.dtype for value in args if is_eligible(value)}
    if len(dtypes) < 2:
        return args
    widest = functools.reduce(torch.promote_types, dtypes)
    return tuple(value.to(widest) if is_eligible(value) else value for value in args)
