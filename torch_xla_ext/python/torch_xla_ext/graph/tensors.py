"""Helpers for names, copies, views and shardings of a captured step's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch_xla
from torch.utils import _pytree as pytree
from torch_xla import runtime
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor

from torch_xla_ext.graph.errors import CaptureError

_XLAC = torch_xla._XLAC


class Description(NamedTuple):
    """The properties of an argument that a program depends on, described for messages."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    notes: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Description:
        notes = {
            "requires_grad": tensor.requires_grad,
            "has .grad": tensor.is_leaf and tensor.grad is not None,
            "no leaf": not tensor.is_leaf,
            "inference": tensor.is_inference(),
            "view": _XLAC._xla_capture_is_view(tensor),
        }
        text = ", ".join(name for name, there in notes.items() if there)
        return cls(tensor.dtype, tuple(tensor.shape), text)

    def __str__(self) -> str:
        text = f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        return f"{text} ({self.notes})" if self.notes else text


def refuse_marked(tensor: torch.Tensor, name: str) -> None:
    """Refuse a result of mark_sharding, whose operations return such tensors, too."""
    if isinstance(tensor, XLAShardedTensor):
        raise CaptureError(
            f"{name} is a result of mark_sharding or distribute_tensor, which a captured step "
            "takes only as an argument, and without a gradient: use the tensor or parameter that "
            "was given to mark_sharding, and has the same sharding"
        )


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that keeps a view's strides in PyTorch, which contiguous() checks."""
    with torch.no_grad():
        copy = tensor.clone().requires_grad_(tensor.requires_grad)
    if (strides := _XLAC._xla_strides((tensor,))) is not None:
        _XLAC._xla_set_strides(copy, strides[0])
    return copy


def shardings_of(tensors: list[torch.Tensor]) -> list[str]:
    """Return the shardings of the tensors' values, under SPMD; none otherwise.

    Without the user's mark, XLA chooses a value's sharding when it computes the value. So pending
    values are computed first.
    """
    if not runtime.is_spmd():
        return []
    shardings = _XLAC._get_xla_sharding_specs(tensors)
    pending = [
        tensor
        for tensor, sharding in zip(tensors, shardings, strict=True)
        if not sharding
        and not _XLAC._xla_capture_data_address(tensor)
        and not _XLAC._xla_capture_transfer(tensor)  # those of the host are replicated
    ]
    if not pending:
        return shardings
    _XLAC._xla_sync_multi(pending, [], False, False)
    return _XLAC._get_xla_sharding_specs(tensors)


def sharding_of(tensor: torch.Tensor) -> _XLAC.OpSharding | None:
    """Return the sharding of one tensor's value, under SPMD, if it has one."""
    return _XLAC._get_xla_op_sharding(tensor) if runtime.is_spmd() else None


def clone_of(tensor: torch.Tensor, sharding: _XLAC.OpSharding | None) -> torch.Tensor:
    """Return a copy with the sharding that a program was compiled for, not one that XLA chooses."""
    copy = tensor.clone()
    if sharding is not None:
        _XLAC._xla_mark_sharding(copy, sharding)
        _XLAC._xla_sync_multi([copy], [], True, False)
        # XLA does not shard results whose sizes are not divisible. This sends such a result to the
        # devices again, and otherwise does nothing.
        _XLAC._xla_mark_sharding(copy, sharding)
    return copy


def shares_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether a tensor on any device has the storage of one on the XLA device."""
    storage = _XLAC._xla_capture_storage
    return _XLAC._xla_capture_is_supported(tensor) and storage(tensor) == storage(other)


def view_of(
    tensor: torch.Tensor, root: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return a view of `root` with the form of `tensor`; None if they do not share a storage."""
    if tensor is root:
        return lambda other: other
    if _XLAC._xla_capture_is_view(root) or tensor.dtype != root.dtype:
        return None
    base = tensor._base
    if base is None:  # root, or a view of it, by way of detach()
        same = tensor.shape == root.shape and _value_of(tensor) == _value_of(root)
        return torch.Tensor.detach if same else None
    if _XLAC._xla_capture_is_view(base) and _value_of(base) != _value_of(root):
        return None
    if base.shape != root.shape:
        return None
    view = _XLAC._xla_capture_view(tensor)
    if view is not None:
        with torch.no_grad():
            made = view(root)
        if location_of(made) != location_of(tensor):  # since changed, for example by t_()
            return None
    return view


def location_of(tensor: torch.Tensor) -> tuple:
    """Return the location of a view's elements in its storage, and their dtype."""
    return _XLAC._xla_capture_place(tensor), tensor.dtype


def _value_of(tensor: torch.Tensor) -> str:
    """Describe a tensor's value: an operation of the trace, or data."""
    return _XLAC._unique_id_for_ir_and_data(tensor)


def argument_names(spec: pytree.TreeSpec) -> list[str]:
    """Return a name for each leaf of (args, kwargs)."""
    skeleton = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    names = []
    for path, _ in pytree.tree_flatten_with_path(skeleton)[0]:
        kind, *rest = path
        if kind.idx == 0:
            names.append(f"argument {rest[0].idx}" + pytree.keystr(tuple(rest[1:])))
        else:
            names.append(f"argument {rest[0].key}" + pytree.keystr(tuple(rest[1:])))
    return names
