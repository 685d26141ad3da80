"""How much memory the weights and the caches may take."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil
import torch
import torch_xla.core.xla_model as xm
from vllm.logger import init_logger

from vllm_xla_gpu.checks import UnsupportedError

logger = init_logger("vllm.xla_gpu")

CPU_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
_CPU_CACHE_GIB = 0.25
# Of the limit, for what programs keep beside the profiled one, and for gaps between buffers.
_RESERVE = 0.03


def set_allocator_fraction(utilization: float) -> None:
    """Makes XLA's allocator take as much of the GPU as vLLM may use.

    Has to be called before the client is made. A user's own PJRT_ALLOCATOR_FRACTION stays.
    """
    os.environ.setdefault("PJRT_ALLOCATOR_FRACTION", str(utilization))


def bytes_text(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def allocator_info(device: torch.device) -> dict[str, int] | None:
    """Bytes that XLA's allocator may take, has in use and had; None if the device does not tell."""
    return None if os.environ["PJRT_DEVICE"] == "CPU" else xm.get_memory_info(device)


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of the device: what may be used, and what was at most in use so far."""

    device: str
    limit: int
    peak: int
    # What the caches get where it does not follow from the other two.
    cache: int | None = None

    @classmethod
    def current(cls, device: torch.device) -> DeviceMemory:
        info = allocator_info(device)
        if info is None:
            cache = float(os.environ.get(CPU_CACHE_VARIABLE) or _CPU_CACHE_GIB) * 2**30
            free = psutil.virtual_memory().available
            return cls("this machine's free memory", free, 0, int(cache))
        peak = info.get("peak_bytes_used") or info["bytes_used"]
        return cls("the GPU's memory", info["bytes_limit"], peak)

    def check_fits(self, weights: int) -> None:
        """Raises UnsupportedError with both numbers if the model is too large."""
        needed, limit = bytes_text(weights), bytes_text(self.limit)
        logger.info("The model's weights are %s, of %s of %s.", needed, limit, self.device)
        if weights > self.limit:
            raise UnsupportedError(
                f"the model's weights are {needed}, but vLLM may use {limit} of {self.device}; "
                "serve a smaller model"
                + (", or raise gpu_memory_utilization" if self.cache is None else "")
            )

    def available_for_cache(self) -> int:
        """Bytes for the KV caches, when the largest step of the model has run without them.

        Raises:
            UnsupportedError: there are none.
        """
        if self.cache is not None:
            return self.cache
        available = int(self.limit * (1 - _RESERVE)) - self.peak
        if available <= 0:
            raise UnsupportedError(
                f"weights and activations took {bytes_text(self.peak)}, and vLLM may use "
                f"{bytes_text(self.limit)} of {self.device}: nothing is left for the KV cache; "
                "raise gpu_memory_utilization, or lower max_num_batched_tokens"
            )
        return available
