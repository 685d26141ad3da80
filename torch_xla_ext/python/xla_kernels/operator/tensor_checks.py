"""Check properties of arguments that a signature cannot express: devices, strides, overlaps.

Each check raises TypeError or ValueError with the operator and the argument: ``xla_gpu::simple_add:
b must be on the device of a, cpu, but is on xla:0``.
"""

from collections.abc import Sequence

import torch

# An argument or a result of an operator.
Value = torch.Tensor | bool | int | float | str | torch.dtype | Sequence | None
Tensors = torch.Tensor | tuple[torch.Tensor, ...]


def require_contiguous(operator: str, name: str, tensor: torch.Tensor) -> None:
    """Raise ValueError unless `tensor`, which is written to, is contiguous.

    XLA tensors pass, because PyTorch does not know their layout.
    """
    if tensor.device.type != "xla" and not tensor.is_contiguous():
        raise ValueError(
            f"{operator}: {name} must be contiguous, but has the strides {list(tensor.stride())} "
            f"and the shape {list(tensor.shape)}"
        )


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the memory ranges of two tensors overlap.

    XLA tensors have no addresses: two of them overlap only if they are the same tensor.
    """
    if a is b:
        return a.numel() > 0
    if "xla" in (a.device.type, b.device.type) or not torch._C._overlaps(a, b):  # one storage
        return False
    (a_begin, a_end), (b_begin, b_end) = _extent(a), _extent(b)
    return a_begin < b_end and b_begin < a_end


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the range of bytes of a tensor's elements in its storage."""
    begin = tensor.storage_offset() * tensor.itemsize
    if tensor.numel() == 0:
        return begin, begin
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return begin, begin + (1 + sum((n - 1) * stride for n, stride in strides)) * tensor.itemsize


def require_no_overlap(
    operator: str, name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor
) -> None:
    """Raise ValueError if `tensor` and `other`, which are both written to, overlap."""
    if overlap(tensor, other):
        raise ValueError(
            f"{operator}: {name} must not overlap {other_name}, because both are written to"
        )


def require_present(operator: str, name: str, value: Value) -> None:
    """Raise TypeError if a required tensor is None."""
    if value is None:
        raise TypeError(f"{operator}: {name} must be a tensor, but is None")


def require_one_device(operator: str, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Raise ValueError unless all tensors, given with their names, are on one device."""
    first_name, first = tensors[0]
    for name, tensor in tensors[1:]:
        if tensor.device != first.device:
            raise ValueError(
                f"{operator}: {name} must be on the device of {first_name}, {first.device}, "
                f"but is on {tensor.device}"
            )
