"""Compute torch._grouped_mm of XLA tensors with the wheel's grouped matmul kernels.

PyTorch's CUDA kernel accepts transposed views: transformers passes a layer's weights as
``weight.transpose(-2, -1)``. Here a kernel is chosen that reads the view's base in its memory
order, so that neither the forward nor the backward pass transposes anything.
"""

import torch
import torch_xla

from torch_xla_ext import ops

_XLAC = torch_xla._XLAC
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Multiply groups of rows or columns, as ``torch._grouped_mm`` does on CUDA.

    Group g begins at the end of group g - 1 and ends at ``offs[g]``. Rows after the last group are
    zeros; PyTorch leaves them uninitialized.

    Args:
        mat_a, mat_b: both float32, bfloat16 or float16, with any strides. [m, k] and [num_groups,
            k, n]: groups of the rows of mat_a and of the result. [m, k] and [k, n]: groups of the
            dimension k, and a result for each group. [num_groups, m, k] and [k, n]: groups of the
            columns of mat_b and of the result. [batch, m, k] and [batch, k, n]: torch.bmm, without
            `offs`.
        offs: int32 [num_groups], ascending.
        bias: must be None.
        out_dtype: None, or the operands' dtype.

    Returns:
        [m, n], or [num_groups, m, n] for the second and the last kind.

    Raises:
        RuntimeError: an argument has an unsupported dtype or shape; the messages are PyTorch's.
    """
    _check(mat_a, mat_b, offs, bias, out_dtype)
    if offs is None:
        return torch.bmm(mat_a, mat_b)
    ranges = torch.stack([torch.cat([torch.zeros_like(offs[:1]), offs[:-1]]), offs], dim=1)
    if mat_a.dim() == mat_b.dim():
        return ops.grouped_outer(mat_a.mT, mat_b, ranges)
    if mat_b.dim() == 3:
        return _product(mat_a, mat_b, ranges)
    return _product(mat_b.mT, mat_a.mT, ranges).mT


def _product(x: torch.Tensor, w: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """Return [num_rows, n] of x [num_rows, k] and w [num_groups, k, n]."""
    if _is_column_major(w):
        return ops.grouped_linear(x, w.mT, ranges)
    return ops.grouped_matmul(x, w, ranges)


def _is_column_major(matrices: torch.Tensor) -> bool:
    """Return whether each matrix is stored transposed."""
    found = _XLAC._xla_strides((matrices,))
    # Tensors of torch.compile's traces have strides.
    *_, row, column = matrices.stride() if found is None else found[0]
    return row == 1 and column >= max(1, matrices.shape[-2]) and matrices.shape[-1] > 1


def _check(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    for name, matrix in (("mat_a", mat_a), ("mat_b", mat_b)):
        _expect(
            matrix.dtype in _DTYPES,
            f"Expected {name} to be Float32, BFloat16 or Float16 matrix, got {_name(matrix.dtype)}",
        )
    _expect(
        mat_a.dtype == mat_b.dtype,
        f"Expected mat_b to be {_name(mat_a.dtype)} matrix, got {_name(mat_b.dtype)}",
    )
    _expect(mat_a.dim() in (2, 3), "mat_a has to be 2 or 3d")
    _expect(mat_b.dim() in (2, 3), "mat_b has to be 2 or 3d")
    _expect(
        mat_a.shape[-1] == mat_b.shape[-2], "contraction dimension of mat_a and mat_b must match"
    )
    _expect(
        (offs is None) == (mat_a.dim() == mat_b.dim() == 3),
        "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d",
    )
    if offs is not None:
        _expect(offs.dim() == 1, "offs has to be 1D")
        _expect(offs.dtype == torch.int32, "Offsets have to be int32")
    _expect(out_dtype in (None, mat_a.dtype), "Grouped gemm output dtype must match `mat_a` dtype")
    _expect(bias is None, "Bias not supported yet")
    if offs is None:
        _expect(mat_a.shape[0] == mat_b.shape[0], "batched dimension has to match")
    elif mat_a.dim() != mat_b.dim():
        batch = (mat_a if mat_a.dim() == 3 else mat_b).shape[0]
        _expect(offs.shape[0] == batch, "matrix batch sizes have to match")


def _expect(condition: bool, text: str) -> None:
    if not condition:
        raise RuntimeError(text)


def _name(dtype: torch.dtype) -> str:
    """Return a dtype's name in PyTorch's errors: Long for torch.int64."""
    return torch.empty(0, dtype=dtype).type().removeprefix("torch.").removesuffix("Tensor")
