"""torch.autocast on XLA:GPU, for "xla" as for "cuda".

On a GPU, torch_xla's tensors ask PyTorch's switch for CUDA whether operators compute in 16 bits,
and what torch.compile traces asks that for XLA: ``autocast("xla")`` changed nothing,
``autocast("cuda")`` nothing that is compiled, and bfloat16 was refused by a torch without CUDA.
Here each of them turns both switches. csrc/aten_overrides/autocast.h has the lists of operators.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType

import torch
from torch.amp import autocast_mode

_OTHER = {"cuda": "xla", "xla": "cuda"}


def replace() -> None:
    """Changes torch.autocast."""
    stock = autocast_mode.autocast
    make, enter, leave = stock.__init__, stock.__enter__, stock.__exit__

    @functools.wraps(make)  # torch.compile reads the signature
    def new_make(
        self: stock,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type != "cuda" or not _is_gpu():
            make(self, device_type, dtype, enabled, cache_enabled)
            return
        # Whether there is bfloat16, PyTorch asks its own CUDA, which it may not have.
        make(self, device_type, torch.float16, enabled, cache_enabled)
        self.fast_dtype = torch.get_autocast_dtype(device_type) if dtype is None else dtype

    @functools.wraps(enter)
    def new_enter(self: stock) -> object:
        result = enter(self)
        if self.device in _OTHER and _is_gpu():
            other = _OTHER[self.device]
            self._other = torch.is_autocast_enabled(other), torch.get_autocast_dtype(other)
            torch.set_autocast_enabled(other, self._enabled)
            torch.set_autocast_dtype(other, self.fast_dtype)
        return result

    @functools.wraps(leave)
    def new_leave(self: stock, *error: object) -> object:
        if other := self.__dict__.pop("_other", None):
            enabled, dtype = other
            torch.set_autocast_enabled(_OTHER[self.device], enabled)
            torch.set_autocast_dtype(_OTHER[self.device], dtype)
        return leave(self, *error)

    stock.__init__, stock.__enter__, stock.__exit__ = new_make, new_enter, new_leave


def replace_module(module: ModuleType) -> None:
    """Changes torch_xla.amp.autocast_mode: its class fails on the CPU."""
    module.autocast = _Autocast


class _Autocast(torch.autocast):
    """torch_xla.amp.autocast: ``torch.autocast("xla")`` with a device as first argument."""

    def __init__(
        self,
        device: torch.device | str,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        if torch.device(device).type != "xla":
            raise ValueError(f"torch_xla.amp.autocast: expected an XLA device but got {device}")
        if dtype is None:
            dtype = torch.float16 if _is_gpu() else torch.bfloat16
        super().__init__("xla", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


def _is_gpu() -> bool:
    return os.environ.get("PJRT_DEVICE") == "CUDA"
