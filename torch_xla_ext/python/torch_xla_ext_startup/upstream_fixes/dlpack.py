"""Compute a pending XLA tensor before its memory is given to another library."""

import functools
from collections.abc import Callable

import torch
import torch_xla


def to_dlpack(original: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], object]:
    """Replace torch_xla.utils.dlpack.to_dlpack."""

    @functools.wraps(original)
    def to_dlpack(xla_tensor: torch.Tensor) -> object:
        if xla_tensor.device.type != "xla":
            raise ValueError(
                f"to_dlpack: expected an XLA tensor but got one on {xla_tensor.device}: "
                "use torch.utils.dlpack.to_dlpack"
            )
        torch_xla._XLAC._xla_sync_multi([xla_tensor], [], True)
        return original(xla_tensor)

    return to_dlpack
