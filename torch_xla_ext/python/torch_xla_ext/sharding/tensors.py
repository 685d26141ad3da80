"""Tensors on several devices: whether they are sharded, and sending them there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch_xla
from torch_xla.distributed.spmd import ShardingSpec


def is_marked(tensor: torch.Tensor) -> bool:
    """Return whether an XLA tensor has a sharding, which may also be replication."""
    return torch_xla._XLAC._get_xla_sharding_spec(tensor) != ""


def send(tensors: Sequence[torch.Tensor], specs: Sequence[ShardingSpec]) -> list[torch.Tensor]:
    """Return CPU tensors as XLA tensors with these shardings, in one transfer."""
    device = str(torch_xla.device())
    shardings = [spec.xla_spec(tensor) for spec, tensor in zip(specs, tensors, strict=True)]
    return torch_xla._XLAC._xla_tensors_from_aten(tensors, [device] * len(tensors), shardings)
