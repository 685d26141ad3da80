"""Linear layers that round weights and inputs to float8_e4m3fn, with scales, as in vLLM."""

import torch
from torch.nn import functional
from torch_xla import runtime as xr

from torch_xla_ext import ops

DTYPE = torch.float8_e4m3fn
_LARGEST = torch.finfo(DTYPE).max
_LEAST_SCALE = 1 / (_LARGEST * 512)  # vLLM's; inputs may be zeros
BLOCK = [128, 128]
# cuBLASLt's fp8 matmuls need multiples of 16. XLA:GPU computes the product of one row in float32,
# and converts the weight in each step.
_LEAST_ROWS = 16


def scale_of(largest: torch.Tensor) -> torch.Tensor:
    """Return the float32 scales with which values of up to `largest` fill the range of fp8."""
    return (largest.float() / _LARGEST).clamp(min=_LEAST_SCALE)


def quantized(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return `x / scale` in fp8; values that a cast would make NaN become the largest fp8 value."""
    return (x.float() * scale.reciprocal()).clamp(-_LARGEST, _LARGEST).to(DTYPE)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    input_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the product of `x`, in fp8, and a weight in fp8.

    Args:
        x: [..., in_features].
        weight: fp8 [out_features, in_features].
        weight_scale: float32 [out_features], or one scale for each block of 128 x 128.
        input_scale: float32 []; by default each row of x, or each of its blocks of 128, has its own
            scale.
        bias: [out_features].

    Returns:
        [..., out_features] of x's dtype.
    """
    rows = x.flatten(0, -2)
    if weight_scale.dim() == 2:
        return _linear_of_blocks(rows, weight, weight_scale, bias).unflatten(0, x.shape[:-1])
    num_rows = len(rows)
    if num_rows < _LEAST_ROWS:
        rows = functional.pad(rows, (0, 0, 0, _LEAST_ROWS - num_rows))
    if input_scale is None and xr.is_spmd():  # devices may share a row: the kernel needs it whole
        scale = scale_of(rows.abs().amax(-1, keepdim=True))
        numbers = quantized(rows, scale)
    else:
        numbers, scale = ops.quantize_inputs(rows, scale=input_scale)
    result = torch._scaled_mm(
        numbers, weight.t(), scale, weight_scale[None], bias=bias, out_dtype=x.dtype
    )
    return result[:num_rows].unflatten(0, x.shape[:-1])


def _linear_of_blocks(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Return the product of `x`, [num_tokens, in_features], with `scaled_grouped_linear`."""
    numbers, scale = ops.quantize_inputs(x, weight_scale.shape[1])
    ranges = torch.tensor([[0, x.shape[0]]], dtype=torch.int32, device=x.device)
    result = ops.scaled_grouped_linear(
        numbers, weight[None], scale, weight_scale[None], ranges, x.dtype
    )
    return result if bias is None else result + bias
