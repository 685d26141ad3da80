"""Round the rows of a matrix to float8_e4m3fn, each with its own scale."""

import math

import torch
from torch.nn import functional

from xla_kernels import Value, define_operator

__all__ = ["quantize_inputs", "quantize_rows"]

TARGET = "XlaGpuQuantizeRows"
BLOCK = 128  # elements with a scale in common
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
# vLLM's least scales of rows and of blocks.
_LEAST_SCALES = 1 / (_LARGEST * 512), 1e-10 / _LARGEST


def _check(least_scale: float, **others: Value) -> None:
    if not (math.isfinite(least_scale) and least_scale > 0):
        raise ValueError(
            "xla_gpu::quantize_rows: least_scale: expected a finite number above 0 but got "
            f"{least_scale}"
        )


define_operator(
    "xla_gpu::quantize_rows(Tensor x, float least_scale) -> (Tensor, Tensor)",
    target=TARGET,
    environment=(),
    check=_check,
    attributes=lambda least_scale, **others: {"least_scale": least_scale},
    sharding_rule="n _ -> n _, n",
)


def quantize_rows(x: torch.Tensor, least_scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a matrix to 8-bit floats for `torch._scaled_mm`: ``torch.ops.xla_gpu.quantize_rows``.

    The scale of a row is ``max(row.abs().max() / 448, least_scale)``, and its elements become ``row
    * (1 / scale)``, rounded to nearest even and saturated at 448. This is the formula of vLLM's
    ``dynamic_per_token_scaled_fp8_quant`` in one kernel; written in PyTorch, it becomes some 30 XLA
    operations for each layer of a model. It has no derivatives.

    Args:
        x: [num_rows, num_columns], float16, bfloat16 or float32.
        least_scale: the lower bound of scales, for rows of small numbers or zeros.

    Returns:
        The numbers, float8_e4m3fn [num_rows, num_columns], and their scales, float32 [num_rows]. A
        row with a NaN has the scale NaN.

    Raises:
        TypeError: `x` has an unsupported dtype.
        ValueError: `x` is not a matrix, or `least_scale` is not a finite number above 0.
        NotImplementedError: autograd would record the call.

    Example:
        >>> x = torch.tensor([[1.0, -448.0], [0.5, 0.25]], device="xla")
        >>> numbers, scale = quantize_rows(x, least_scale=1e-5)
        >>> numbers.float().cpu()
        tensor([[   1., -448.],
                [ 448.,  224.]])
        >>> (numbers.float() * scale[:, None]).cpu()
        tensor([[ 1.0000e+00, -4.4800e+02],
                [ 5.0000e-01,  2.5000e-01]])
    """
    return torch.ops.xla_gpu.quantize_rows(x, least_scale)


def quantize_inputs(
    x: torch.Tensor, k_scales: int = 1, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round the inputs of a layer to fp8, for `scaled_grouped_linear`.

    Args:
        x: [num_rows, k], float16, bfloat16 or float32.
        k_scales: how many scales a row has: 1, or ``ceil(k / 128)``, each for 128 elements.
        scale: float32 []: the scale of all elements; by default, each row or block has its own
            scale, as in `quantize_rows`.

    Returns:
        The numbers, float8_e4m3fn [num_rows, k], and their scales, float32 [num_rows, k_scales].

    Example:
        >>> numbers, scale = quantize_inputs(torch.ones(3, 256), k_scales=2)
        >>> (numbers.float().unique(), scale.shape)
        (tensor([448.]), torch.Size([3, 2]))
    """
    num_rows, k = x.shape
    if scale is not None:
        numbers = (x.float() * scale.reciprocal()).clamp(-_LARGEST, _LARGEST)
        return numbers.to(torch.float8_e4m3fn), scale.expand(num_rows, k_scales)
    if k_scales == 1:
        numbers, scales = torch.ops.xla_gpu.quantize_rows(x, _LEAST_SCALES[0])
        return numbers, scales[:, None]
    missing = k_scales * BLOCK - k
    blocks = functional.pad(x, (0, missing)) if missing else x
    numbers, scales = torch.ops.xla_gpu.quantize_rows(blocks.reshape(-1, BLOCK), _LEAST_SCALES[1])
    numbers = numbers.view(num_rows, k_scales * BLOCK)
    return numbers[:, :k] if missing else numbers, scales.view(num_rows, k_scales)
