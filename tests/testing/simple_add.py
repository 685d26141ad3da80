"""Operands for tests of simple_add."""

import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64)


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A CPU tensor of random integers in the dtype's range, or of floats around ±100."""
    if dtype.is_floating_point:
        return (torch.randn(shape) * 100).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, dtype=dtype)
