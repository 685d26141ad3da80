"""Calls with sharded tensors: the part of each device (docs/distributed.md).

`is_marked` and `send` are public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch_xla
from torch_xla.distributed.spmd import ShardingSpec

from torch_xla_ext.sharding import plan
from torch_xla_ext.sharding.plan import REFUSE_ENVIRONMENT, Operand, Shard
from torch_xla_ext.sharding.rule import Rule

__all__ = ["REFUSE_ENVIRONMENT", "Parts", "Rule", "Shard", "is_marked", "parts", "send"]


def is_marked(tensor: torch.Tensor) -> bool:
    """Returns whether an XLA tensor has a sharding, which may be that each device has all of it."""
    return torch_xla._XLAC._get_xla_sharding_spec(tensor) != ""


def send(tensors: Sequence[torch.Tensor], specs: Sequence[ShardingSpec]) -> list[torch.Tensor]:
    """Returns CPU tensors as XLA tensors with these shardings, in one transfer."""
    device = str(torch_xla.device())
    shardings = [spec.xla_spec(tensor) for spec, tensor in zip(specs, tensors, strict=True)]
    return torch_xla._XLAC._xla_tensors_from_aten(tensors, [device] * len(tensors), shardings)


class Parts(NamedTuple):
    """What each device has of a call's operands and results.

    Attributes:
        operands: None for one that is absent.
        results: of the results that the rule names.
    """

    operands: Sequence[Shard | None]
    results: Sequence[Shard]


def parts(
    caller: str,
    rule: Rule | None,
    operands: Mapping[str, torch.Tensor | None],
    results: Sequence[Sequence[int]],
    aliases: Mapping[int, int],
) -> Parts | None:
    """The parts of its operands on which each device runs a call; None if each uses the whole.

    A warning says once what has to be gathered, or an error does
    (TORCH_XLA_EXT_REFUSE_GATHERS=1).

    Args:
        caller: what a warning calls the operator or target.
        operands: by their names.
        results: the shapes of those that the rule names.
        aliases: of results in an operand's buffer, the operand's number.

    Raises:
        ValueError: shapes do not fit to the rule.
        RuntimeError: something is gathered, and that is to be an error.
    """
    if not torch_xla.runtime.is_spmd():
        return None
    described = []
    for tensor in operands.values():
        if tensor is None:
            described.append(None)
            continue
        shape = tuple(tensor.shape)
        if not all(isinstance(size, int) for size in shape):
            return None  # the call will refuse a dynamic shape
        num_bytes = tensor.numel() * tensor.itemsize
        described.append(Operand(shape, num_bytes, torch_xla._XLAC._xla_sharding(tensor)))
    made = plan.make(rule, tuple(described), tuple(aliases.values()))
    if made is None:
        return None
    plan.report(caller, list(operands), made.gathers)
    if rule is None or not made.operands:
        return None
    shapes = [tuple(shape) for shape in results]
    return Parts(made.operands, plan.results(made, rule, shapes, described, aliases))
