"""Shard calls and tensors in programs for several devices (docs/distributed.md).

`PeerMemory`, `is_marked`, `join` and `send` are public.
"""

from collections.abc import Callable, Sequence

from torch_xla_ext.sharding.partitioned_call import (
    DeviceCall,
    LocalCall,
    PartitionedCall,
    add,
    num_devices,
)
from torch_xla_ext.sharding.parts import Parts, Value
from torch_xla_ext.sharding.peer_memory import PeerMemory
from torch_xla_ext.sharding.plan import Array, Shape
from torch_xla_ext.sharding.rule import Rule
from torch_xla_ext.sharding.tensors import is_marked, join, send

__all__ = [
    "Array",
    "DeviceCall",
    "LocalCall",
    "PartitionedCall",
    "Parts",
    "PeerMemory",
    "Rule",
    "Shape",
    "add",
    "is_marked",
    "join",
    "parts",
    "send",
]


def parts(
    function: Callable[[Sequence[Shape | None], Sequence[Shape]], Value],
    rule: Rule,
    operands: Sequence[Shape | None],
    results: Sequence[Shape],
) -> Parts[Value] | None:
    """Return the results of `function` for each possible part; None for one device."""
    if num_devices() == 1:
        return None
    return Parts(function, rule, operands, results, num_devices())
