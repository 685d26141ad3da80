"""Grouped matmuls with the wheel's kernels, and matmuls with int8 weights.

They compute what upstream's TPU kernels compute (torch_xla.experimental.custom_kernel), on every
device and with gradients.
"""

from collections.abc import Sequence

import torch

from torch_xla_ext import ops


def _check(name: str, condition: bool, expected: str, *tensors: torch.Tensor) -> None:
    if not condition:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        raise ValueError(f"{name}: expected {expected}, but got {shapes}")


def _ranges(
    group_sizes: torch.Tensor, group_offset: torch.Tensor | None, count: int
) -> torch.Tensor:
    """Return the row ranges of `count` groups, int32 [count, 2]; absent groups have no rows."""
    ranges = ops.group_ranges(group_sizes)
    num_groups = ranges.shape[0]
    if group_offset is None and count == num_groups:
        return ranges
    groups = torch.arange(count, device=ranges.device)
    if group_offset is not None:
        groups = groups + group_offset.reshape(())
    exists = (groups >= 0) & (groups < num_groups)
    return torch.where(exists[:, None], ranges[groups.clamp(0, num_groups - 1)], 0)


def gmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Sequence[int] | None = None,
    group_offset: torch.Tensor | None = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    """Return the product of each group of rows with its own matrix.

    Args:
        lhs: [m, k]; the rows of the groups, one group after the other.
        rhs: [num_matrices, k, n]; with transpose_rhs [num_matrices, n, k].
        group_sizes: int32 or int64 [num_groups].
        tiling: ignored; it tunes the TPU kernel.
        group_offset: the group of rhs[0], a tensor of one element; 0 if it is None.
        transpose_rhs: how rhs is stored.

    Returns:
        [m, n] of lhs' dtype; zeros in rows that belong to no group, or to a group without a matrix.

    Raises:
        ValueError: the shapes do not fit.
    """
    contracted = 2 if transpose_rhs else 1
    fits = lhs.dim() == 2 and rhs.dim() == 3 and group_sizes.dim() == 1
    fits = fits and lhs.shape[1] == rhs.shape[contracted]
    fits = fits and (group_offset is not None or group_sizes.shape[0] == rhs.shape[0])
    last = "n, k" if transpose_rhs else "k, n"
    _check(
        "gmm",
        fits,
        f"lhs [m, k], rhs [num_groups, {last}] and group_sizes [num_groups]",
        *(lhs, rhs, group_sizes),
    )
    product = ops.grouped_linear if transpose_rhs else ops.grouped_matmul
    return product(lhs, rhs.to(lhs.dtype), _ranges(group_sizes, group_offset, rhs.shape[0]))


def tgmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Sequence[int] = (512, 512, 512),
    group_offset: torch.Tensor | None = None,
    num_actual_groups: int | None = None,
) -> torch.Tensor:
    """Return the product of each group of columns of `lhs` with the same rows of `rhs`.

    Args:
        lhs: [k, m].
        rhs: [m, n].
        group_sizes: int32 or int64 [num_groups].
        tiling: ignored; it tunes the TPU kernel.
        group_offset: the group of result[0], a tensor of one element; 0 if it is None.
        num_actual_groups: how many groups are computed; all if it is None.

    Returns:
        [num_actual_groups, k, n] of lhs' dtype; zero for an empty group.

    Raises:
        ValueError: the shapes do not fit.
    """
    fits = lhs.dim() == rhs.dim() == 2 and group_sizes.dim() == 1 and lhs.shape[1] == rhs.shape[0]
    _check("tgmm", fits, "lhs [k, m], rhs [m, n] and group_sizes [g]", lhs, rhs, group_sizes)
    count = group_sizes.shape[0] if num_actual_groups is None else num_actual_groups
    ranges = _ranges(group_sizes, group_offset, count)
    return ops.grouped_outer(lhs.t(), rhs.to(lhs.dtype), ranges)


def quantized_matmul_int8(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    quant_block_size: torch.Tensor | None = None,
    quantize_activation: bool = False,
) -> torch.Tensor:
    """Multiply `x` by the transpose of `w`, whose rows are scaled.

    Args:
        x: [batch_size, in_features].
        w: int8 [out_features, in_features].
        scalar: [out_features]; the scales of the rows of w.
        zero_point, quant_block_size: must be None; upstream's kernel does not support them either.
        quantize_activation: first round each row of x to int8, scaled so that its largest absolute
            value is 127. The products are then summed in float32.

    Returns:
        [batch_size, out_features] of x's dtype.

    Raises:
        NotImplementedError: zero_point or quant_block_size is given.
        ValueError: the shapes or w's dtype do not fit.
    """
    if zero_point is not None or quant_block_size is not None:
        raise NotImplementedError(
            "quantized_matmul_int8: zero_point and quant_block_size are not supported, as in "
            "upstream's kernel; leave them out"
        )
    fits = x.dim() == w.dim() == 2 and x.shape[1] == w.shape[1] and scalar.shape == w.shape[:1]
    expected = "x [batch, in], w [out, in] and scalar [out]"
    _check("quantized_matmul_int8", fits, expected, x, w, scalar)
    if w.dtype != torch.int8:
        raise ValueError(f"quantized_matmul_int8: expected w of int8, but got {w.dtype}")
    if not quantize_activation:
        return ((x @ w.to(x.dtype).t()).float() * scalar.float()).to(x.dtype)
    # In float32 for every dtype: XLA may keep that precision, and would round otherwise than torch.
    scale = x.abs().amax(1, keepdim=True).float() / 127
    scale = torch.where(scale == 0, 1, scale)
    rounded = (x.float() / scale).round()
    return (rounded @ w.float().t() * scalar.float() * scale).to(x.dtype)
