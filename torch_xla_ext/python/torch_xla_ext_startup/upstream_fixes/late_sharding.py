"""Sharding that comes late: a tensor that has another one, and use_spmd() after a device was used.

The first ended in a C++ stack. After the second, what a program had on its devices and what it made
later were on different ones, for torch_xla, and the next program was a segmentation fault.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch_xla
from torch_xla import runtime

_XLAC = torch_xla._XLAC


def mark_sharding(
    original: Callable[[torch.Tensor, object], None],
) -> Callable[[torch.Tensor, object], None]:
    """_xla_mark_sharding, with which mark_sharding ends."""

    def mark(tensor: torch.Tensor, sharding: object) -> None:
        try:
            original(tensor, sharding)
            return
        except RuntimeError as error:
            text = str(error)
        if "Data does not present on any device" in text:
            _XLAC._xla_wait_device_ops([])  # the program that computes it is still to be started
        elif "Existing annotation must be cleared first" in text:
            _XLAC._xla_wait_device_ops([])
            _XLAC._xla_clear_sharding(tensor)
        elif "Please enable SPMD" in text:
            raise RuntimeError(
                "mark_sharding needs xr.use_spmd(): call it once, right after the imports"
            ) from None
        elif "Input tensor is not an XLA tensor" in text or tensor.device.type != "xla":
            raise RuntimeError(
                f"mark_sharding: the tensor of shape {list(tensor.shape)} is on {tensor.device}: "
                'move it with .to("xla") first'
            ) from None
        original(tensor, sharding)

    return mark


def use_spmd(original: Callable[..., None]) -> Callable[..., None]:
    """use_spmd."""

    @functools.wraps(original)
    def use(auto: bool | None = False) -> None:
        if _XLAC._xla_get_spmd_config_is_locked() and not runtime.is_spmd():
            raise RuntimeError(
                "use_spmd() comes too late: this process has used an XLA device without it, so "
                "that its tensors are on single devices; call use_spmd() right after the imports, "
                'before torch_xla.device(), .to("xla") and capture'
            )
        original(auto)

    return use
