"""Samples of simple_add for tests/ops."""

import torch
from testing.samples import Arguments, OperatorSamples
from testing.simple_add import DTYPES, random

from torch_xla_ext import ops


def _batched_pair(in_dims: tuple[int | None, ...]) -> Arguments:
    """Two tensors, one example of each of which is [3, 4], in a batch of 5."""
    tensors = []
    for dim in in_dims:
        shape = [3, 4]
        if dim is not None:
            shape.insert(dim % 3, 5)
        tensors.append(torch.randn(shape))
    return tuple(tensors)


SAMPLES = [
    OperatorSamples(
        documented=ops.simple_add,
        target="XlaGpuSimpleAdd",
        reference=torch.add,
        dtypes=DTYPES,
        arguments=lambda dtype: (random(dtype, 3, 4), random(dtype, 3, 4)),
        differentiable=True,
        batched=_batched_pair,
        batched_in_dims=((0, 0), (0, None), (None, 0), (1, 2), (-1, 0), (2, None)),
    ),
]
