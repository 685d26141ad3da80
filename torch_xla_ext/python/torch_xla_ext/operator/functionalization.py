"""Helpers for PyTorch's functionalization, which implements XLA tensors' views and writes."""

import torch
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor

from xla_kernels.operator.tensor_checks import Value


def unsharded(args: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return the arguments, with mark_sharding's results replaced by the tensors they wrap."""
    return tuple(arg.global_tensor if isinstance(arg, XLAShardedTensor) else arg for arg in args)


def replace(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give `tensor`, and its base if it is a view, the new value `value`.

    This is the "Functionalize" kernel that torch generates for its own in-place operators.
    ``tensor.copy_(value)`` would compute the same values, but keep the old XLA tensor, and
    torch_xla orders a program's results by the age of their tensors. The results must be in the
    order of the calls, as the parameters are (WithAliasedLast in csrc/custom_call/custom_call.cc).

    Args:
        tensor: a functional tensor, the argument of a "Functionalize" kernel.
        value: a functional tensor of the same shape and dtype.
    """
    torch._sync(value)
    inner = torch._from_functional_tensor(value)
    old = torch._from_functional_tensor(tensor)
    if old.device.type == "xla" and type(old) is torch.Tensor:
        torch._propagate_xla_data(old, inner)  # it sets the buffer that torch_xla donates
    torch._functionalize_replace(tensor, inner)
    torch._functionalize_commit_update(tensor)
    torch._functionalize_sync(tensor)
