"""Element-wise addition: the smallest kernel that shows the whole way of a call."""

import struct

import torch
import torch_xla

TARGET = "XlaGpuSimpleAdd"

# The numbers of xla::PrimitiveType, by which kernels/simple_add/simple_add.h knows the dtypes.
_PRIMITIVE_TYPES = {
    torch.int32: 4,
    torch.int64: 5,
    torch.float16: 10,
    torch.float32: 11,
    torch.float64: 12,
    torch.bfloat16: 16,
}
_MAX_ELEMENTS = 1 << 40


def pack_descriptor(dtype: torch.dtype, count: int) -> bytes:
    """The kernel's payload: SimpleAddDescriptor of kernels/simple_add/simple_add.h.

    Args:
        dtype: the dtype of the operands and of the result.
        count: the number of elements of each.

    Returns:
        16 bytes, little-endian: magic, version, dtype, 5 bytes of zero, count (i64).
    """
    magic, version = 1, 1
    return struct.pack("<BBB5xq", magic, version, _PRIMITIVE_TYPES[dtype], count)


def simple_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Adds two XLA tensors with the custom call ``XlaGpuSimpleAdd``.

    Integers wrap around; 16-bit floats are added in float32 and rounded once, as torch does.

    Args:
        a: an XLA tensor of any shape, of dtype float16, bfloat16, float32, float64, int32 or
            int64, with at most 2^40 elements.
        b: an XLA tensor of the same shape and dtype, on the same device.

    Returns:
        ``a + b``, of the same shape and dtype.

    Raises:
        TypeError: an argument is not a tensor, or has another dtype than these or than the other.
        ValueError: the shapes differ, a tensor is too large or not on an XLA device.
    """
    for name, value in (("a", a), ("b", b)):
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{TARGET}: {name} must be a tensor, but is of type {type(value)}")
        if value.dtype not in _PRIMITIVE_TYPES:
            supported = ", ".join(str(dtype) for dtype in _PRIMITIVE_TYPES)
            raise TypeError(
                f"{TARGET}: {name} must have one of the dtypes {supported}, but has {value.dtype}"
            )
    if a.dtype != b.dtype:
        raise TypeError(f"{TARGET}: b must have the dtype of a, {a.dtype}, but has {b.dtype}")
    if a.shape != b.shape:
        raise ValueError(
            f"{TARGET}: b must have the shape of a, {list(a.shape)}, but has {list(b.shape)}"
        )
    if a.numel() > _MAX_ELEMENTS:
        raise ValueError(f"{TARGET}: a must have at most 2^40 elements, but has {a.numel()}")
    payload = pack_descriptor(a.dtype, a.numel())
    return torch_xla._XLAC._xla_gpu_custom_call([a, b], payload, [a.shape], [a.dtype], TARGET)[0]
