"""Samples of copy_outside_graphs for tests/ops."""

import torch
from testing.samples import OperatorSamples

from torch_xla_ext import ops

SAMPLES = [
    OperatorSamples(
        documented=ops.copy_outside_graphs,
        target="XlaGpuCopyOutsideGraphs",
        reference=torch.clone,
        dtypes=(
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.int32,
            torch.int64,
        ),
        arguments=lambda dtype: ((torch.randn(5, 24) * 100).to(dtype),),
    )
]
