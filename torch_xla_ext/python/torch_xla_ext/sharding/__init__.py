"""Calls in programs for several devices, and tensors on them (docs/distributed.md).

`is_marked` and `send` are public.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch_xla
from torch_xla.distributed.spmd import ShardingSpec

from torch_xla_ext.sharding.partitioned_call import (
    DeviceCall,
    LocalCall,
    PartitionedCall,
    add,
    num_devices,
)
from torch_xla_ext.sharding.parts import Parts, Value
from torch_xla_ext.sharding.plan import Array, Shape
from torch_xla_ext.sharding.rule import Rule

__all__ = [
    "Array",
    "DeviceCall",
    "LocalCall",
    "PartitionedCall",
    "Parts",
    "Rule",
    "Shape",
    "add",
    "is_marked",
    "parts",
    "send",
]


def parts(
    function: Callable[[Sequence[Shape | None], Sequence[Shape]], Value],
    rule: Rule,
    operands: Sequence[Shape | None],
    results: Sequence[Shape],
) -> Parts[Value] | None:
    """What `function` returns for each part that a device may have; None if there is one device."""
    if num_devices() == 1:
        return None
    return Parts(function, rule, operands, results, num_devices())


def is_marked(tensor: torch.Tensor) -> bool:
    """Returns whether an XLA tensor has a sharding, which may be that each device has all of it."""
    return torch_xla._XLAC._get_xla_sharding_spec(tensor) != ""


def send(tensors: Sequence[torch.Tensor], specs: Sequence[ShardingSpec]) -> list[torch.Tensor]:
    """Returns CPU tensors as XLA tensors with these shardings, in one transfer."""
    device = str(torch_xla.device())
    shardings = [spec.xla_spec(tensor) for spec, tensor in zip(specs, tensors, strict=True)]
    return torch_xla._XLAC._xla_tensors_from_aten(tensors, [device] * len(tensors), shardings)
