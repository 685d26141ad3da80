"""Products of tokens with weights that are not quantized."""

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
    """Return with how many columns the kernels are faster.

    An H100's memory is the limit of both. XLA's products reach more of an H200's, unless there are
    so few columns that it divides the sums.
    """
    kind = torch_xla._XLAC._xla_device_kind(str(torch_xla.device()))
    return float("inf") if "H100" in str(kind) else 4096


def is_skinny(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether the operators for few rows compute the product, and faster than XLA does."""
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
