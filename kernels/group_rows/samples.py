"""Samples of group_rows for tests/ops."""

import torch
from testing.samples import Arguments, OperatorSamples

from torch_xla_ext import ops

_NUM_GROUPS = 5


def _arguments(dtype: torch.dtype) -> Arguments:
    return (torch.randint(-1, _NUM_GROUPS + 1, (40,), dtype=dtype),)


def _reference(groups: torch.Tensor) -> torch.Tensor:
    """Return order, position and ranges, concatenated."""
    numbers = torch.where((groups >= 0) & (groups < _NUM_GROUPS), groups, _NUM_GROUPS)
    order = numbers.argsort(stable=True)
    ends = torch.stack([(numbers <= group).sum() for group in range(-1, _NUM_GROUPS)])
    ranges = torch.stack([ends[:-1], ends[1:]], 1)
    return torch.cat([order, order.argsort(), ranges.flatten()]).int()


def _of_tensors(groups: torch.Tensor) -> torch.Tensor:
    return torch.cat([result.flatten() for result in ops.group_rows(groups, _NUM_GROUPS)])


SAMPLES = [
    OperatorSamples(
        documented=ops.group_rows,
        target="XlaGpuGroupRows",
        reference=_reference,
        dtypes=(torch.int32,),
        arguments=_arguments,
        others=(_NUM_GROUPS,),
        of_tensors=_of_tensors,
    )
]
