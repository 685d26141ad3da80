"""Make torch.autocast work on XLA:GPU, for both "xla" and "cuda".

On a GPU, torch_xla's tensors use PyTorch's autocast switch for CUDA, and traces of torch.compile
use the switch for XLA. So upstream, ``autocast("xla")`` has no effect, ``autocast("cuda")`` has
none in compiled functions, and a torch without CUDA refuses bfloat16. Here each of them sets both
switches. csrc/aten_overrides/autocast.h has the lists of operators.
"""

import functools
import os
from collections.abc import Callable

import torch

_OTHER = {"cuda": "xla", "xla": "cuda"}


def initialize(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)  # torch.compile reads the signature
    def initialize(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type != "cuda" or not _is_gpu():
            original(self, device_type, dtype, enabled, cache_enabled)
            return
        # For bfloat16 support, PyTorch queries its own CUDA, which it may lack.
        original(self, device_type, torch.float16, enabled, cache_enabled)
        self.fast_dtype = torch.get_autocast_dtype(device_type) if dtype is None else dtype

    return initialize


def enter(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def enter(self: torch.autocast) -> object:
        result = original(self)
        if self.device in _OTHER and _is_gpu():
            other = _OTHER[self.device]
            self._other = torch.is_autocast_enabled(other), torch.get_autocast_dtype(other)
            torch.set_autocast_enabled(other, self._enabled)
            torch.set_autocast_dtype(other, self.fast_dtype)
        return result

    return enter


def leave(original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def leave(self: torch.autocast, *error: object) -> object:
        if other := self.__dict__.pop("_other", None):
            enabled, dtype = other
            torch.set_autocast_enabled(_OTHER[self.device], enabled)
            torch.set_autocast_dtype(_OTHER[self.device], dtype)
        return original(self, *error)

    return leave


def xla_autocast(_: type) -> Callable[..., torch.autocast]:
    """Replace torch_xla.amp.autocast, a class that fails on the CPU and in torch.compile."""

    def autocast(
        device: torch.device | str,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> torch.autocast:
        """Return ``torch.autocast("xla")``, with a device as the first argument."""
        if torch.device(device).type != "xla":
            raise ValueError(f"torch_xla.amp.autocast: expected an XLA device but got {device}")
        if dtype is None:
            dtype = torch.float16 if _is_gpu() else torch.bfloat16
        return torch.autocast("xla", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    return autocast


def _is_gpu() -> bool:
    return os.environ.get("PJRT_DEVICE") == "CUDA"
