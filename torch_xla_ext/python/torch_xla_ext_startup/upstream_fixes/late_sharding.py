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
        except RuntimeError:
            if tensor.device.type != "xla":
                raise RuntimeError(
                    f"mark_sharding: the tensor of shape {list(tensor.shape)} is on "
                    f'{tensor.device}: move it with .to("xla") first'
                ) from None
            if not runtime.is_spmd():
                raise RuntimeError(
                    "mark_sharding needs xr.use_spmd(): call it once, right after the imports"
                ) from None
        # The program that computes the value may still have to be started.
        _XLAC._xla_wait_device_ops([])
        if _XLAC._get_xla_sharding_spec(tensor):
            _XLAC._xla_clear_sharding(tensor)
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
