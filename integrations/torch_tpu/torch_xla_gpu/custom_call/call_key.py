"""The key by which a call is cached: calls with equal keys differ in their operands only."""

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

    It is None for calls that are not cached: with subclasses of Tensor, symbolic numbers, or
    operands on other devices.

    Args:
        operands: gets the tensors of the device.
        other: the part of the key for a value that this function does not know, or None.
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
