"""Make the autograd kernel of an operator.

In torch 2.8, torch.library.register_autograd would suffice for ``backward()``, but not for
torch.func: torch.func.grad fails, and torch.func.jvp silently returns zero tangents.

PyTorch runs an operator's autograd kernel once for each level of torch.func's transforms. So the
torch.autograd.Function here is the kind that PyTorch itself uses for a single level; the public
kind would start again with the outermost level.
"""

from collections.abc import Callable, Sequence

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx, _SingleLevelFunction

from xla_kernels.operator.tensor_checks import Tensors, Value


def with_defaults(operator: torch._ops.OpOverload, args: Sequence[Value]) -> tuple[Value, ...]:
    """Return all arguments of an operator, with trailing defaults, which the dispatcher omits."""
    left_out = operator._schema.arguments[len(args) :]
    return (*args, *(argument.default_value for argument in left_out))


def make_kernel(
    operator: torch._ops.OpOverload,
    setup_context: Callable[..., None] | None,
    backward: Callable[..., Tensors] | None,
    jvp: Callable[..., Tensors] | None,
) -> Callable[..., Tensors]:
    """Make the function to register for `operator` under the key "Autograd".

    Args:
        operator: the operator, which has no keyword-only arguments.
        setup_context, backward, jvp: as in torch.autograd.Function; they receive all arguments,
            including omitted ones. A missing function raises when it is needed.
    """

    class Derivative(_SingleLevelFunction):
        @staticmethod
        def forward(modes: tuple[bool, bool], *args: Value) -> Tensors:
            # torch has turned both modes off for this level, but the levels below need them.
            grad, forward_grad = modes
            with torch.set_grad_enabled(grad), forward_ad._set_fwd_grad_enabled(forward_grad):
                return _call_below(operator, args)

        @staticmethod
        def setup_context(ctx: FunctionCtx, inputs: tuple[Value, ...], output: Tensors) -> None:
            if setup_context is not None:
                setup_context(ctx, inputs[1:], output)

        @staticmethod
        def backward(ctx: FunctionCtx, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            if backward is None:
                raise NotImplementedError(
                    f"{operator.name()} has no derivative: pass setup_context= and backward= to "
                    "define_operator, or call it under torch.no_grad() or with detached tensors"
                )
            result = backward(ctx, *grads)
            return (None, *result) if isinstance(result, tuple) else (None, result)

        @staticmethod
        def jvp(ctx: FunctionCtx, modes: None, *tangents: torch.Tensor | None) -> Tensors:
            if jvp is None:
                raise NotImplementedError(
                    f"{operator.name()} has no forward-mode derivative; use reverse mode, as "
                    "torch.func.vjp does"
                )
            # Forward-mode AD is off here, too; the tangents of an outer torch.func.jvp would be
            # lost.
            with forward_ad._set_fwd_grad_enabled(True):
                return jvp(ctx, *tangents)

    def kernel(*args: Value) -> Tensors:
        modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        if any(_is_differentiated(value, *modes) for value in args):
            args = with_defaults(operator, args)
            with enable_single_level_autograd_function():
                return Derivative.apply(modes, *args)
        return _call_below(operator, args)

    return kernel


def make_in_place_kernel(
    operator: torch._ops.OpOverload, written: Sequence[int]
) -> Callable[..., None]:
    """Make the function for an operator that has no derivatives and writes to `written`."""

    def kernel(*args: Value) -> None:
        modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        for argument, value in zip(operator._schema.arguments, args, strict=False):
            if _is_differentiated(value, *modes):
                raise NotImplementedError(
                    f"{operator.name()} has no derivative, but {argument.name} requires one: call "
                    "it under torch.no_grad(), or with detached tensors"
                )
        _call_below(operator, args)
        # Marks the write, so that autograd raises an error if it needs the overwritten value.
        torch.autograd.graph.increment_version([args[i] for i in written])

    return kernel


def _call_below(operator: torch._ops.OpOverload, args: tuple[Value, ...]) -> Tensors:
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*args)


def _is_differentiated(value: Value, grad: bool, forward_grad: bool) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    if grad and value.requires_grad:
        return True
    return forward_grad and forward_ad.unpack_dual(value).tangent is not None
