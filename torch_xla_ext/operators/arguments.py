"""Checks of an operator's arguments.

Each raises TypeError or ValueError with a text of one form, which names the operator and the
argument: ``xla_gpu::simple_add: b must have the shape of a, [3], but has [4]``. They hold for
tensors with symbolic sizes as well: what is known only when the program runs is checked then.
"""

from collections.abc import Collection, Sequence

import torch

from torch_xla_ext.signature_check import require

# An argument of an operator, and what an operator returns.
Value = torch.Tensor | bool | int | float | str | torch.dtype | Sequence | None
Tensors = torch.Tensor | tuple[torch.Tensor, ...]


def require_dtype(
    operator: str, name: str, tensor: torch.Tensor, dtypes: Collection[torch.dtype]
) -> None:
    """Raises TypeError unless `tensor` has one of `dtypes`."""
    if tensor.dtype not in dtypes:
        supported = ", ".join(str(dtype) for dtype in dtypes)
        raise TypeError(
            f"{operator}: {name} must have one of the dtypes {supported}, but has {tensor.dtype}"
        )


def require_same_dtype(
    operator: str, name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor
) -> None:
    """Raises TypeError unless `tensor` has the dtype of `other`."""
    if tensor.dtype != other.dtype:
        raise TypeError(
            f"{operator}: {name} must have the dtype of {other_name}, {other.dtype}, "
            f"but has {tensor.dtype}"
        )


def require_same_shape(
    operator: str, name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor
) -> None:
    """Raises ValueError unless `tensor` has the shape of `other`."""

    def message() -> str:
        return (
            f"{operator}: {name} must have the shape of {other_name}, {list(other.shape)}, "
            f"but has {list(tensor.shape)}"
        )

    require(tensor.dim() == other.dim(), ValueError, message)
    for size, expected in zip(tensor.shape, other.shape, strict=True):
        require(size == expected, ValueError, message)


def require_contiguous(operator: str, name: str, tensor: torch.Tensor) -> None:
    """Raises ValueError unless `tensor`, which is written to, is contiguous."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"{operator}: {name} must be contiguous, but has the strides {list(tensor.stride())} "
            f"and the shape {list(tensor.shape)}"
        )


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the bytes that two tensors extend over have some in common.

    XLA tensors have no addresses; of two of them it is known only whether they are one.
    """
    if a is b:
        return a.numel() > 0
    if "xla" in (a.device.type, b.device.type) or not torch._C._overlaps(a, b):  # one storage
        return False
    (a_begin, a_end), (b_begin, b_end) = _extent(a), _extent(b)
    return a_begin < b_end and b_begin < a_end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor's elements begin and end in its storage, in bytes."""
    begin = tensor.storage_offset() * tensor.itemsize
    if tensor.numel() == 0:
        return begin, begin
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return begin, begin + (1 + sum((n - 1) * stride for n, stride in strides)) * tensor.itemsize


def require_no_overlap(
    operator: str, name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor
) -> None:
    """Raises ValueError if `tensor` and `other`, which are both written to, overlap."""
    if overlap(tensor, other):
        raise ValueError(
            f"{operator}: {name} must not overlap {other_name}, but does: both are written to"
        )


def require_shape(
    operator: str, name: str, tensor: torch.Tensor, dims: str, sizes: Sequence[int | None]
) -> None:
    """Raises ValueError unless `tensor` has the shape `dims`, whose sizes are `sizes`.

    Args:
        dims: the dimensions' names, ``"num_seqs, head_dim"``.
        sizes: their sizes, None for one that may be any.
    """

    def message() -> str:
        known = ", ".join("any" if size is None else str(size) for size in sizes)
        return (
            f"{operator}: {name} must have the shape [{dims}], [{known}], but has "
            f"{list(tensor.shape)}"
        )

    require(tensor.dim() == len(sizes), ValueError, message)
    for size, expected in zip(tensor.shape, sizes, strict=True):
        if expected is not None:
            require(size == expected, ValueError, message)


def require_present(operator: str, name: str, value: Value) -> None:
    """Raises TypeError if a tensor is None that may not be."""
    if value is None:
        raise TypeError(f"{operator}: {name} must be a tensor, but is None")


def require_one_device(operator: str, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raises ValueError unless all tensors, given with their names, are on one device."""
    first_name, first = tensors[0]
    for name, tensor in tensors[1:]:
        if tensor.device != first.device:
            raise ValueError(
                f"{operator}: {name} must be on the device of {first_name}, {first.device}, "
                f"but is on {tensor.device}"
            )
