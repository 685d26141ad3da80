"""Give parameters of XlaFullyShardedDataParallel the dtype of their values.

With compute_dtype=torch.bfloat16, a parameter receives a tensor of bfloat16, but still reported
float32. Operators with a bias, and products, then saw operands of two dtypes.
"""

import functools
from collections.abc import Callable

import torch


def replace_xla_tensor(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Replace _replace_xla_tensor, which only that class calls."""

    @functools.wraps(original)
    def replace(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == source.dtype:
            return original(tensor, source)
        tensor.data = source.detach()
        return tensor

    return replace
