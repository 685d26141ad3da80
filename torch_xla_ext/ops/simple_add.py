"""Element-wise addition: the smallest kernel that shows the whole way of a call."""

import torch

from torch_xla_ext.calls import custom_call
from torch_xla_ext.debug import register_reference

TARGET = "XlaGpuSimpleAdd"

_DTYPES = (
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.bfloat16,
)
_MAX_ELEMENTS = 1 << 40

register_reference(TARGET, lambda inputs, outputs, attributes: [inputs[0] + inputs[1]])


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
        if value.dtype not in _DTYPES:
            supported = ", ".join(str(dtype) for dtype in _DTYPES)
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
    return custom_call(TARGET, [a, b], [a])[0]
