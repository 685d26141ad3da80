"""The test kernels of gather_host.cc, registered."""

import os

import torch

from torch_xla_ext import register_kernel

LIBRARY = os.environ["GATHER_KERNELS"]
PARAMETERS = {"window": 7, "offset": 1, "factor": 0.5, "bias": 1.5, "negate": False}


def register() -> None:
    for name in ("TestGather", "TestIncrement", "TestThrow"):
        register_kernel(name, LIBRARY)


def gathered(table: torch.Tensor, index: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """What TestGather gives with PARAMETERS."""
    return table[index.long() + 1] * 0.5 * scale + 1.5
