"""Measure memory, and divide it among weights, activations and caches."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil
import torch
import torch_xla.core.xla_model as xm
from vllm.logger import init_logger

from vllm_xla_gpu.limits import UnsupportedError
from xla_kernels import client_create_options
from xla_kernels.plugin import driver

logger = init_logger("vllm.xla_gpu")

CPU_CACHE_VARIABLE = "VLLM_CPU_KVCACHE_SPACE"
_CPU_CACHE_GIB = 0.25
# Share of the limit for memory of programs beside the profiled one, and for gaps between buffers.
_RESERVE = 0.03
# Share of the limit for activations if XLA does not report their size.
_ACTIVATIONS = 0.1


def set_allocator_fraction(utilization: float) -> None:
    """Set PJRT_ALLOCATOR_FRACTION to vLLM's gpu_memory_utilization.

    Call this before the PJRT client is created. A value that the user has set is kept.
    """
    os.environ.setdefault("PJRT_ALLOCATOR_FRACTION", str(utilization))


def bytes_text(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def allocator_info(device: torch.device) -> dict[str, int] | None:
    """Return the allocator's limit, use and peak in bytes; None if XLA does not report them.

    With several devices, these are the numbers of the one with the least free memory. A CPU has
    none.
    """
    if os.environ["PJRT_DEVICE"] == "CPU":
        return None
    try:
        return xm.get_memory_info(device)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        logger.warning("XLA reports no memory size, so it is estimated: %s", reason)
        return None


def allocator_peak(device: torch.device) -> int:
    """Return the peak bytes of XLA's allocator; 0 if it does not report them."""
    info = allocator_info(device) or {}
    return info.get("peak_bytes_used") or info.get("bytes_used", 0)


def room_for(size: int, device: torch.device, most: int) -> int:
    """Return how many times `size` bytes fit into the device's free memory, from 1 to `most`."""
    info = allocator_info(device)
    if info is None:
        return most
    return max(1, min(most, (info["bytes_limit"] - info["bytes_used"]) // size))


def gpu_memory() -> int:
    """Return the bytes of this process's smallest GPU, from NVIDIA's driver."""
    # A single GPU if the host has several processes.
    numbers = client_create_options(os.environ).get("visible_devices")
    return min(map(driver.total_memory, numbers or range(driver.device_count())))


@dataclass(frozen=True)
class DeviceMemory:
    """The device's memory in bytes: the limit, and the peak so far."""

    device: str
    limit: int
    peak: int
    # The caches' bytes, unless they follow from the limit and the peak.
    cache: int | None = None

    @classmethod
    def current(cls, device: torch.device, weights: int = 0, earlier_peak: int = 0) -> DeviceMemory:
        """Return the current memory.

        Args:
            device: the XLA device.
            weights: the bytes of the weights on the device.
            earlier_peak: `allocator_peak` before this engine was made, the peak of earlier engines
                in this process.
        """
        info = allocator_info(device)
        if info is None and os.environ["PJRT_DEVICE"] == "CPU":
            cache = float(os.environ.get(CPU_CACHE_VARIABLE) or _CPU_CACHE_GIB) * 2**30
            free = psutil.virtual_memory().available
            return cls("this machine's free memory", free, 0, int(cache))
        if info is None:
            limit = int(gpu_memory() * float(os.environ["PJRT_ALLOCATOR_FRACTION"]))
            return cls("each GPU's memory", limit, weights + int(limit * _ACTIVATIONS))
        limit, peak = info["bytes_limit"], allocator_peak(device)
        if earlier_peak and peak == earlier_peak:  # not of this engine
            peak = min(peak, info["bytes_used"] + int(limit * _ACTIVATIONS))
        return cls("the GPU's memory", limit, peak)

    def check_fits(self, weights: int) -> None:
        """Raise UnsupportedError, with both sizes, if the model's weights exceed the memory."""
        needed, limit = bytes_text(weights), bytes_text(self.limit)
        logger.info("The model's weights are %s, of %s of %s.", needed, limit, self.device)
        if weights > self.limit:
            raise UnsupportedError(
                f"the model's weights are {needed}, but vLLM may use {limit} of {self.device}; "
                "serve a smaller model"
                + (", or raise gpu_memory_utilization" if self.cache is None else "")
            )

    def available_for_cache(self, devices: int = 1) -> int:
        """Return the bytes that are left for KV caches.

        Call this after the largest step has run without caches.

        Args:
            devices: the number of devices that share the caches.

        Raises:
            UnsupportedError: no memory is left for caches.
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
        return available * devices
