"""Refuse PyTorch's transforms that a custom call does not support: derivatives, vmap, make_fx."""

from collections.abc import Callable, Sequence

import torch
from torch.autograd import forward_ad


class WithoutDerivative(torch.autograd.Function):
    """A function whose backward pass raises an error instead of returning incomplete gradients."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        target: str,
        call: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.target = target
        return tuple(call(tensors))

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError(
            f"custom call {ctx.target!r} has no derivative; call it inside a "
            "torch.autograd.Function "
            "that has one, or on detached tensors"
        )


def may_apply() -> bool:
    """Return whether one of torch's transforms is active, for any tensors."""
    return (
        torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def refuse(target: str, tensors: Sequence[torch.Tensor | None]) -> None:
    """Refuse active transforms, which a call outside of the dispatcher would silently ignore."""
    remedy = "make an operator of the kernel, with torch_xla_ext.define_operator"
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        raise NotImplementedError(
            f"custom call {target!r} cannot be traced by make_fx or torch.export, which would "
            f"treat its results as constants; {remedy}"
        )
    if torch._C._functorch.peek_interpreter_stack() is not None:
        for index, tensor in enumerate(tensors):
            if tensor is None or not torch._C._functorch.is_functorch_wrapped_tensor(tensor):
                continue
            lacks, transform = ("derivative", "torch.func")
            if torch._C._functorch.is_batchedtensor(tensor):
                lacks, transform = ("batching rule", "torch.vmap")
            raise NotImplementedError(
                f"custom call {target!r} has no {lacks}, but {transform} transforms inputs[{index}]"
                f"; {remedy} that has one"
            )
    if forward_ad._current_level >= 0:
        for index, tensor in enumerate(tensors):
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                raise NotImplementedError(
                    f"custom call {target!r} has no forward-mode derivative, but inputs[{index}] "
                    f"has a tangent; {remedy} that has one"
                )
