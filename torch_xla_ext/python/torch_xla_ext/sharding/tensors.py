"""Move tensors to several devices, and test whether a tensor is sharded."""

from collections.abc import Sequence

import torch
import torch_xla
from torch_xla.distributed.spmd import Mesh, ShardingSpec


def is_marked(tensor: torch.Tensor) -> bool:
    """Return whether an XLA tensor has a sharding, which may also be replication."""
    return torch_xla._XLAC._get_xla_sharding_spec(tensor) != ""


def send(tensors: Sequence[torch.Tensor], specs: Sequence[ShardingSpec]) -> list[torch.Tensor]:
    """Return CPU tensors as XLA tensors with these shardings, in one transfer."""
    device = str(torch_xla.device())
    shardings = [spec.xla_spec(tensor) for spec, tensor in zip(specs, tensors, strict=True)]
    return torch_xla._XLAC._xla_tensors_from_aten(tensors, [device] * len(tensors), shardings)


def join(shards: Sequence[torch.Tensor], mesh: Mesh, dim: int) -> torch.Tensor:
    """Join CPU tensors, one per device, into a sharded XLA tensor, without a copy of the whole.

    `send`, in contrast, divides a whole tensor, which it copies.

    Args:
        shards: tensors of one shape, in the order of the mesh's devices.
        mesh: has one axis, with this process's devices in order.
        dim: the dimension along which they are joined.
    """
    shape = list(shards[0].shape)
    shape[dim] *= len(shards)
    (axis,) = mesh.axis_names
    sharding = mesh.get_op_sharding(tuple(axis if i == dim else None for i in range(len(shape))))
    return torch_xla._XLAC._global_tensor_from_cpu_shards(shards, sharding, shape)
