"""Grouped matmuls: multiply each group of rows by its own matrix, as MoE layers do."""

from collections.abc import Callable
from functools import partial

import torch
from torch.autograd.function import FunctionCtx

from xla_kernels import Value, define_operator

__all__ = [
    "group_ranges",
    "grouped_linear",
    "grouped_linear_sum",
    "grouped_matmul",
    "grouped_outer",
    "mx_grouped_linear",
    "mx_grouped_linear_sum",
    "scaled_grouped_linear",
    "scaled_grouped_linear_sum",
]

SCALE_BLOCK = 128  # elements with a scale in common

# The operands x and w, or x and y.
_Gradient = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _save(ctx: FunctionCtx, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(of_left: _Gradient, of_right: _Gradient) -> Callable:
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        operands = ctx.saved_tensors
        left, right, _ = ctx.needs_input_grad[-3:]
        return (
            of_left(grad, *operands) if left else None,
            of_right(grad, *operands) if right else None,
            None,
        )

    return backward


def _matmul(x: torch.Tensor, w: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    return torch.ops.xla_gpu.grouped_matmul(x, w, ranges)


def _linear(x: torch.Tensor, w: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    return torch.ops.xla_gpu.grouped_linear(x, w, ranges)


def _outer(x: torch.Tensor, y: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    return torch.ops.xla_gpu.grouped_outer(x, y, ranges)


# Devices may share the groups: in a device's part of the sum, rows of other devices' groups are
# zeros.
define_operator(
    "xla_gpu::grouped_matmul(Tensor x, Tensor w, Tensor ranges) -> Tensor",
    target="XlaGpuGroupedMatmul",
    environment=(),
    setup_context=_save,
    backward=_backward(
        lambda grad, x, w, ranges: _linear(grad, w, ranges),
        lambda grad, x, w, ranges: _outer(x, grad, ranges),
    ),
    sharding_rule="_ k, e k n, e _ -> _ n; sum k e",
)
define_operator(
    "xla_gpu::grouped_linear(Tensor x, Tensor w, Tensor ranges) -> Tensor",
    target="XlaGpuGroupedLinear",
    environment=(),
    setup_context=_save,
    backward=_backward(
        lambda grad, x, w, ranges: _matmul(grad, w, ranges),
        lambda grad, x, w, ranges: _outer(grad, x, ranges),
    ),
    sharding_rule="_ k, e n k, e _ -> _ n; sum k e",
)
define_operator(
    "xla_gpu::grouped_linear_sum(Tensor x, Tensor w, Tensor ranges, Tensor position, "
    "Tensor weights) -> Tensor",
    target="XlaGpuGroupedLinearSum",
    environment=(),
    sharding_rule="_ k, e n k, e _, _ _, _ _ -> _ n; sum k e",
)
define_operator(
    "xla_gpu::grouped_outer(Tensor x, Tensor y, Tensor ranges) -> Tensor",
    target="XlaGpuGroupedOuter",
    environment=(),
    setup_context=_save,
    backward=_backward(
        lambda grad, x, y, ranges: _linear(y, grad, ranges),
        lambda grad, x, y, ranges: _matmul(x, grad, ranges),
    ),
    sharding_rule="_ m, _ n, e _ -> e m n",
)


def _check_scales(
    target: str, x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, **others: Value
) -> None:
    (_, n, k), (_, n_scales, k_scales) = w.shape, w_scale.shape
    n_blocks, k_blocks = -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK)
    if n_scales not in (1, n_blocks, n) or k_scales not in (1, k_blocks):
        raise ValueError(
            f"{target}: operand 3 (w_scale): expected dimensions 1 and 2 to be 1, {n_blocks} or "
            f"{n}, and 1 or {k_blocks}, but got {n_scales} and {k_scales}"
        )


def _scaled_rule(w: torch.Tensor, w_scale: torch.Tensor, **others: Value) -> str:
    """Return the sharding rule; devices share dimensions with block scales in whole blocks."""

    def dimension(name: str, size: int, scales: int) -> tuple[str, str]:
        if scales == 1:
            return name, "_"
        each = 1 if scales == size else SCALE_BLOCK
        return ("_", "_") if size % each else (f"({name} {each})", name)

    (_, n, k), (_, n_scales, k_scales) = w.shape, w_scale.shape
    (n_dim, of_n), (k_dim, of_k) = dimension("n", n, n_scales), dimension("k", k, k_scales)
    rows = ", _ _, _ _" if "position" in others else ""
    sums = "e" if k_dim == "_" else "k e"
    return (
        f"_ {k_dim}, e {n_dim} {k_dim}, _ {of_k}, e {of_n} {of_k}, e _{rows}, _ -> _ {n_dim}; "
        f"sum {sums}"
    )


_SCALED = "Tensor x, Tensor w, Tensor x_scale, Tensor w_scale, Tensor ranges"
define_operator(
    f"xla_gpu::scaled_grouped_linear({_SCALED}, Tensor like) -> Tensor",
    target="XlaGpuScaledGroupedLinear",
    environment=(),
    check=partial(_check_scales, "XlaGpuScaledGroupedLinear"),
    sharding_rule=_scaled_rule,
)
define_operator(
    f"xla_gpu::scaled_grouped_linear_sum({_SCALED}, Tensor position, Tensor weights, Tensor like) "
    "-> Tensor",
    target="XlaGpuScaledGroupedLinearSum",
    environment=(),
    check=partial(_check_scales, "XlaGpuScaledGroupedLinearSum"),
    sharding_rule=_scaled_rule,
)

_MX = "Tensor x, Tensor w, Tensor w_scale, Tensor ranges"
define_operator(
    f"xla_gpu::mx_grouped_linear({_MX}) -> Tensor",
    target="XlaGpuMxGroupedLinear",
    environment=(),
    sharding_rule="_ (b 32), e n (b 16), e n b, e _ -> _ n; sum b e",
)
define_operator(
    f"xla_gpu::mx_grouped_linear_sum({_MX}, Tensor position, Tensor weights) -> Tensor",
    target="XlaGpuMxGroupedLinearSum",
    environment=(),
    sharding_rule="_ (b 32), e n (b 16), e n b, e _, _ _, _ _ -> _ n; sum b e",
)


def group_ranges(sizes: torch.Tensor) -> torch.Tensor:
    """Return `ranges` for `grouped_matmul`, for groups whose rows follow one another.

    Args:
        sizes: [num_groups], integers: each group's number of rows.

    Returns:
        int32 [num_groups, 2]: the begin and the end of each group's rows.

    Example:
        >>> group_ranges(torch.tensor([2, 0, 3]))
        tensor([[0, 2],
                [2, 2],
                [2, 5]], dtype=torch.int32)
    """
    ends = sizes.cumsum(0)
    return torch.stack([ends - sizes, ends], dim=1).int()


def grouped_matmul(x: torch.Tensor, w: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """Multiply each group of rows by its own matrix: ``torch.ops.xla_gpu.grouped_matmul``.

    Group g has the rows ``ranges[g, 0] <= row < ranges[g, 1]``, and its results are ``x[begin:end]
    @ w[g]``, summed in float32. Rows of the result that belong to no group are zeros. Only the
    device reads `ranges`, and it only reads matrices of groups with rows. ``torch._grouped_mm`` and
    ``jax.lax.ragged_dot`` compute the same.

    Ranges must ascend and be disjoint. If they do not, or exceed the rows of `x`, they are clipped:
    a row in several ranges belongs to the first one, and a range that ends before an earlier one is
    empty.

    Args:
        x: [num_rows, k], float16, bfloat16 or float32.
        w: [num_groups, k, n], of the same dtype; at most 1024 groups.
        ranges: int32 [num_groups, 2], for instance from `group_ranges`.

    Returns:
        [num_rows, n], of the dtype of `x`. It is differentiable with respect to `x` and `w`.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or device.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [5.0, 5.0]], device="xla")
        >>> w = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[10.0, 20.0], [30.0, 40.0]]], device="xla")
        >>> grouped_matmul(x, w, group_ranges(torch.tensor([1, 2], device="xla"))).cpu()
        tensor([[ 1.,  2.],
                [30., 40.],
                [40., 60.],
                [ 0.,  0.]])
    """
    return torch.ops.xla_gpu.grouped_matmul(x, w, ranges)


def grouped_linear(x: torch.Tensor, w: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """Multiply groups of rows by transposed matrices: ``torch.ops.xla_gpu.grouped_linear``.

    This is `grouped_matmul` for weights in the layout of linear layers: a group's results are
    ``x[begin:end] @ w[g].T``.

    Args:
        x: [num_rows, k], float16, bfloat16 or float32.
        w: [num_groups, n, k], of the same dtype; at most 1024 groups.
        ranges: int32 [num_groups, 2], for instance from `group_ranges`.

    Returns:
        [num_rows, n], of the dtype of `x`. It is differentiable with respect to `x` and `w`.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or device.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], device="xla")
        >>> w = torch.tensor([[[1.0, 2.0]], [[10.0, 20.0]]], device="xla")
        >>> grouped_linear(x, w, group_ranges(torch.tensor([1, 2], device="xla"))).cpu()
        tensor([[ 1.],
                [20.],
                [30.]])
    """
    return torch.ops.xla_gpu.grouped_linear(x, w, ranges)


def grouped_linear_sum(
    x: torch.Tensor,
    w: torch.Tensor,
    ranges: torch.Tensor,
    position: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Sum weighted rows of `grouped_linear`: ``torch.ops.xla_gpu.grouped_linear_sum``.

    Row i of the result is the sum of ``weights[i, j] * products[position[i, j]]`` over j, where
    ``products = grouped_linear(x, w, ranges)``: the last step of an MoE layer, whose tokens are in
    several groups. Devices that share the groups, or k, exchange these sums instead of the
    products. It has no derivatives.

    Args:
        x: [num_rows, k], float16, bfloat16 or float32.
        w: [num_groups, n, k], of the same dtype; at most 1024 groups.
        ranges: int32 [num_groups, 2], as in `grouped_matmul`.
        position: int32 [num_sums, num_terms]. Positions outside of `x` add nothing.
        weights: float32 [num_sums, num_terms].

    Returns:
        [num_sums, n], of the dtype of `x`, to which products are rounded, too; sums are in float32.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or device.
        NotImplementedError: autograd would record the call.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], device="xla")
        >>> w = torch.tensor([[[1.0, 2.0]], [[10.0, 20.0]]], device="xla")
        >>> ranges = group_ranges(torch.tensor([1, 2], device="xla"))
        >>> position = torch.tensor([[0, 2], [1, 0]], dtype=torch.int32, device="xla")
        >>> weights = torch.tensor([[1.0, 0.5], [1.0, 0.0]], device="xla")
        >>> grouped_linear_sum(x, w, ranges, position, weights).cpu()
        tensor([[16.],
                [20.]])
    """
    return torch.ops.xla_gpu.grouped_linear_sum(x, w, ranges, position, weights)


def scaled_grouped_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    ranges: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Multiply groups of rows in fp8, with scales: ``torch.ops.xla_gpu.scaled_grouped_linear``.

    This is `grouped_linear` of ``x * x_scale`` and ``w * w_scale``, which are never stored. Along
    k, a scale is for a block of 128 elements or for all; along n, for a block of 128, for one row
    of w, or for all. With one group, it is the product of a linear layer. It has no derivatives.

    Args:
        x: float8_e4m3fn [num_rows, k], for instance from `quantize_rows`.
        w: float8_e4m3fn [num_groups, n, k]; at most 1024 groups.
        x_scale: float32 [num_rows, k_scales]; k_scales is 1 or ``ceil(k / 128)``.
        w_scale: float32 [num_groups, n_scales, k_scales]; n_scales is 1, ``ceil(n / 128)`` or n.
        ranges: int32 [num_groups, 2], as in `grouped_matmul`.
        dtype: the dtype of the results: float16, bfloat16 or float32.

    Returns:
        [num_rows, n], of `dtype`, summed in float32.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or device.
        NotImplementedError: autograd would record the call.

    Example:
        >>> x = torch.tensor([[1.0, 0.5], [2.0, 0.0]], device="xla")
        >>> x, x_scale = torch.ops.xla_gpu.quantize_rows(x, 1e-5)
        >>> w = torch.ones(1, 1, 2, device="xla").to(torch.float8_e4m3fn)
        >>> w_scale = torch.full((1, 1, 1), 10.0, device="xla")
        >>> ranges = group_ranges(torch.tensor([2], device="xla"))
        >>> scaled_grouped_linear(x, w, x_scale[:, None], w_scale, ranges).cpu()
        tensor([[15.],
                [20.]], dtype=torch.bfloat16)
    """
    like = x_scale.new_empty(0, dtype=dtype)
    return torch.ops.xla_gpu.scaled_grouped_linear(x, w, x_scale, w_scale, ranges, like)


def scaled_grouped_linear_sum(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    ranges: torch.Tensor,
    position: torch.Tensor,
    weights: torch.Tensor,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Sum weighted rows of products in fp8: ``torch.ops.xla_gpu.scaled_grouped_linear_sum``.

    It sums rows of `scaled_grouped_linear` as `grouped_linear_sum` sums rows of `grouped_linear`.
    The first five arguments and `dtype` are those of `scaled_grouped_linear`, `position` and
    `weights` those of `grouped_linear_sum`.

    Returns:
        [num_sums, n], of `dtype`, to which products are rounded, too; sums are in float32.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or device.
        NotImplementedError: autograd would record the call.

    Example:
        >>> x = torch.tensor([[1.0, 0.5], [2.0, 0.0]], device="xla")
        >>> x, x_scale = torch.ops.xla_gpu.quantize_rows(x, 1e-5)
        >>> w = torch.ones(1, 1, 2, device="xla").to(torch.float8_e4m3fn)
        >>> w_scale = torch.full((1, 1, 1), 10.0, device="xla")
        >>> ranges = group_ranges(torch.tensor([2], device="xla"))
        >>> position = torch.tensor([[0, 1]], dtype=torch.int32, device="xla")
        >>> weights = torch.tensor([[2.0, 0.5]], device="xla")
        >>> scaled_grouped_linear_sum(
        ...     x, w, x_scale[:, None], w_scale, ranges, position, weights
        ... ).cpu()
        tensor([[40.]], dtype=torch.bfloat16)
    """
    like = x_scale.new_empty(0, dtype=dtype)
    return torch.ops.xla_gpu.scaled_grouped_linear_sum(
        x, w, x_scale, w_scale, ranges, position, weights, like
    )


def mx_grouped_linear(
    x: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, ranges: torch.Tensor
) -> torch.Tensor:
    """Multiply groups of rows by MXFP4 weights: ``torch.ops.xla_gpu.mx_grouped_linear``.

    This is `grouped_linear` with the weights' values, which are never stored. Each block of 32
    elements along k, of four bits (E2M1) each, has a power of two as its scale (E8M0), as in the
    OCP Microscaling Formats (MX) Specification 1.0 and gpt-oss's checkpoints. It has no
    derivatives.

    Args:
        x: [num_rows, k], float16, bfloat16 or float32; on Hopper, bfloat16 is fast.
        w: uint8 [num_groups, n, k / 2], two elements per byte, the first in the low bits; at most
            1024 groups. On the CPU and CUDA also float4_e2m1fn_x2.
        w_scale: uint8 [num_groups, n, k / 32]; a value e is the scale 2^(e - 127), and 255 is NaN.
            On the CPU and CUDA also float8_e8m0fnu.
        ranges: int32 [num_groups, 2], as in `grouped_matmul`.

    Returns:
        [num_rows, n], of the dtype of `x`, with sums in float32.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or device.
        NotImplementedError: autograd would record the call.

    Example:
        >>> x = torch.ones(2, 32, device="xla")
        >>> w = torch.full((1, 1, 16), 0x42, dtype=torch.uint8, device="xla")  # 1 and 2, in turn
        >>> w_scale = torch.full((1, 1, 1), 128, dtype=torch.uint8, device="xla")
        >>> ranges = group_ranges(torch.tensor([1], device="xla"))
        >>> mx_grouped_linear(x, w, w_scale, ranges).cpu()
        tensor([[96.],
                [ 0.]])
    """
    return torch.ops.xla_gpu.mx_grouped_linear(x, w, w_scale, ranges)


def mx_grouped_linear_sum(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scale: torch.Tensor,
    ranges: torch.Tensor,
    position: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Sum weighted rows of products with MXFP4: ``torch.ops.xla_gpu.mx_grouped_linear_sum``.

    It sums rows of `mx_grouped_linear`, whose arguments come first, as `grouped_linear_sum` sums
    rows of `grouped_linear`, with its `position` and `weights`.

    Returns:
        [num_sums, n], of the dtype of `x`, to which products are rounded, too; sums are in float32.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or device.
        NotImplementedError: autograd would record the call.

    Example:
        >>> x = torch.ones(2, 32, device="xla")
        >>> w = torch.full((1, 1, 16), 0x42, dtype=torch.uint8, device="xla")  # 1 and 2, in turn
        >>> w_scale = torch.full((1, 1, 1), 127, dtype=torch.uint8, device="xla")
        >>> ranges = group_ranges(torch.tensor([2], device="xla"))
        >>> position = torch.tensor([[0, 1]], dtype=torch.int32, device="xla")
        >>> weights = torch.tensor([[1.0, 0.5]], device="xla")
        >>> mx_grouped_linear_sum(x, w, w_scale, ranges, position, weights).cpu()
        tensor([[72.]])
    """
    return torch.ops.xla_gpu.mx_grouped_linear_sum(x, w, w_scale, ranges, position, weights)


def grouped_outer(x: torch.Tensor, y: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """Sum the outer products of each group's rows: ``torch.ops.xla_gpu.grouped_outer``.

    A group's result is ``x[begin:end].T @ y[begin:end]``, summed in float32; zeros for a group
    without rows. This is the gradient of the matrices of `grouped_matmul`.

    Args:
        x: [num_rows, m], float16, bfloat16 or float32.
        y: [num_rows, n], of the same dtype.
        ranges: int32 [num_groups, 2], as in `grouped_matmul`; at most 1024 groups.

    Returns:
        [num_groups, m, n], of the dtype of `x`. It is differentiable with respect to `x` and `y`.

    Raises:
        TypeError, ValueError: an argument has an unsupported or mismatched dtype, shape or device.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], device="xla")
        >>> y = torch.tensor([[2.0], [3.0], [4.0]], device="xla")
        >>> grouped_outer(x, y, group_ranges(torch.tensor([1, 2], device="xla"))).cpu()
        tensor([[[2.],
                 [0.]],
        <BLANKLINE>
                [[4.],
                 [7.]]])
    """
    return torch.ops.xla_gpu.grouped_outer(x, y, ranges)
