"""Compute the key by which a call is cached: calls with equal keys differ only in operands."""

from collections.abc import Callable, Hashable, Sequence

import torch

from torch_xla_gpu import device

Key = tuple[Hashable, ...]

_PLAIN = {
    *(bool, int, str, bytes, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
}


def of_values(
    values: Sequence[object],
    operands: list[torch.Tensor],
    other: Callable[[object], Hashable | None] = lambda value: None,
) -> Key | None:
    """Return the key of a call: the types of operands, and the other values.

    The key is None for calls that are not cached: with subclasses of Tensor, symbolic numbers, or
    operands on other devices.

    Args:
        operands: receives the device's tensors.
        other: returns the part of the key for a value of any other type, or None.
    """
    parts: list[Hashable] = []
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            part: Hashable | None = kind, value
        elif kind is float:
            part = kind, value.hex()  # -0.0 is not 0.0
        elif kind in (torch.Tensor, torch.nn.Parameter) and value.device.type == device.TYPE:
            operands.append(value)
            part = value.shape, value.dtype, value.device
        elif kind is list or kind is tuple:
            part = of_values(value, operands, other)
        else:
            part = other(value)
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)
