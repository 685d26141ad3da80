"""Multiply tokens by weights that are not quantized."""

import functools

import torch
import torch_xla
from torch.nn import functional

from torch_xla_ext import ops

# With more tokens, or with too few columns for the multiprocessors, XLA's products are as fast.
_MOST_TOKENS = 16
LEAST_COLUMNS = 1024


@functools.cache
def _most_columns() -> float:
    """Return the number of columns up to which the kernels for few rows are faster than XLA's.

    On an H100 both are limited by the memory. XLA's matmuls use more of an H200's bandwidth, unless
    there are so few columns that XLA divides the sums.
    """
    kind = torch_xla._XLAC._xla_device_kind(str(torch_xla.device()))
    return float("inf") if "H100" in str(kind) else 4096


def is_skinny(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether the operators for few rows support the product, and are faster than XLA."""
    return (
        x.dim() == 2
        and 0 < x.shape[0] <= _MOST_TOKENS
        and x.dtype == weight.dtype
        and x.dtype in (torch.float16, torch.bfloat16)
        and x.shape[1] % 8 == 0
        and LEAST_COLUMNS <= weight.shape[0] <= _most_columns()
    )


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute `functional.linear`."""
    if not is_skinny(x, weight):
        return functional.linear(x, weight, bias)
    product = ops.skinny_linear(x, weight)
    return product if bias is None else product + bias
