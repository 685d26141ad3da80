"""Samples of simple_add: tests/ops uses them for derivatives, vmap, compilation and sharding."""

import torch
from testing.samples import OperatorSamples
from testing.simple_add import DTYPES, random

from torch_xla_ext import ops

SAMPLES = [
    OperatorSamples(
        documented=ops.simple_add,
        target="XlaGpuSimpleAdd",
        reference=torch.add,
        dtypes=DTYPES,
        arguments=lambda dtype: (random(dtype, 3, 4), random(dtype, 3, 4)),
        differentiable=True,
        batched=lambda in_dims: tuple(
            torch.randn(3, 4) if dim is None else torch.randn(5, 3, 4).movedim(0, dim)
            for dim in in_dims
        ),
        batched_in_dims=((0, 0), (0, None), (None, 0), (1, 2), (-1, 0), (2, None)),
    )
]
