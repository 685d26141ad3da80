"""CUDA's driver in Python, as far as xla_kernels.plugin.driver's callers use it."""

# ruff: noqa: N802, N815 (CUDA's names)

import functools
from collections.abc import Callable

import pytest

from xla_kernels.plugin import driver

OUT_OF_MEMORY, ILLEGAL_ADDRESS, ALREADY_ENABLED = 2, 700, 704
_NAMES = {
    OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    ILLEGAL_ADDRESS: b"CUDA_ERROR_ILLEGAL_ADDRESS",
}


class FakeCuda:
    """GPUs that keep the time of the kernels launched on them.

    Other functions of the driver do nothing.

    Attributes:
        sizes: bytes of the GPUs' memory.
        l2_size: bytes of the GPUs' cache.
        free: bytes that may still be allocated.
        called: the functions that were called, in order.
        fails: the errors of functions that fail.
        allocated: sizes by address.
        contexts: the GPUs whose contexts are retained.
        stack: the contexts that are pushed; the last one is current.
    """

    def __init__(self, sizes: tuple[int, ...] = (80 << 30,)) -> None:
        self.sizes = sizes
        self.l2_size = 50 << 20
        self.free = 1 << 30
        self.called: list[str] = []
        self.fails: dict[str, int] = {}
        self.allocated: dict[int, int] = {}
        self.contexts: list[int] = []
        self.stack: list[int] = []
        self._handles = 0x1000
        self._clock = 0.0
        self._events: dict[int, float] = {}
        self._is_cached = False
        self._has_failed = False

    def launch(self, milliseconds: float) -> None:
        """Launches a kernel that takes so long; with less than 0, the kernel fails.

        It takes no time if the cache has its operands from an earlier launch.
        """
        if milliseconds < 0:
            self._has_failed = True
        elif not self._is_cached:
            self._clock += milliseconds
            self._is_cached = True

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _call(self, name: str, *arguments: object) -> int:
        if name == "cuGetErrorName":
            arguments[1]._obj.value = _NAMES.get(arguments[0])
            return 0
        self.called.append(name)
        if self._has_failed and name not in ("cuInit", "cuCtxPopCurrent_v2"):
            return ILLEGAL_ADDRESS
        function = getattr(type(self), f"_{name}", None)
        return self.fails.get(name) or (function and function(self, *arguments)) or 0

    def _new(self, handle: object) -> None:
        self._handles += 0x10
        handle._obj.value = self._handles

    _cuStreamCreate = _cuEventCreate = lambda self, handle, flags: self._new(handle)

    def _cuDeviceGet(self, device: object, number: int) -> int:
        device._obj.value = 10 + number
        return 0 if number < len(self.sizes) else 101

    def _cuDriverGetVersion(self, version: object) -> None:
        version._obj.value = 13010

    def _cuDeviceGetCount(self, count: object) -> None:
        count._obj.value = len(self.sizes)

    def _cuDeviceTotalMem_v2(self, size: object, device: object) -> None:
        size._obj.value = self.sizes[device.value - 10]

    def _cuDeviceGetName(self, name: object, size: int, device: object) -> None:
        name.value = f"NVIDIA Fake {device.value - 10}".encode()

    def _cuDeviceGetAttribute(self, value: object, which: int, device: object) -> None:
        value._obj.value = {75: 9, 76: 0, 38: self.l2_size}[which]

    def _cuDeviceCanAccessPeer(self, can: object, device: object, peer: object) -> None:
        can._obj.value = 1

    def _cuDevicePrimaryCtxRetain(self, context: object, device: object) -> None:
        self.contexts.append(device.value - 10)
        context._obj.value = 0x100 + device.value - 10

    def _cuDevicePrimaryCtxRelease_v2(self, device: object) -> None:
        self.contexts.remove(device.value - 10)

    def _cuCtxPushCurrent_v2(self, context: object) -> None:
        self.stack.append(context.value)

    def _cuCtxPopCurrent_v2(self, context: object) -> None:
        self.stack.pop()

    def _cuMemAlloc_v2(self, address: object, size: object) -> int:
        if size.value > self.free:
            return OUT_OF_MEMORY
        self._new(address)
        self.free -= size.value
        self.allocated[address._obj.value] = size.value
        return 0

    def _cuMemFree_v2(self, address: object) -> None:
        self.free += self.allocated.pop(address.value)

    def _cuMemsetD8Async(
        self, address: object, value: object, size: object, stream: object
    ) -> None:
        assert size.value <= self.allocated[address.value]
        self._clock += 1
        if size.value > self.l2_size:
            self._is_cached = False

    def _cuEventRecord(self, event: object, stream: object) -> None:
        self._events[event.value] = self._clock

    def _cuEventElapsedTime(self, milliseconds: object, begin: object, end: object) -> None:
        milliseconds._obj.value = self._events[end.value] - self._events[begin.value]

    def is_clean(self) -> bool:
        """Whether all memory is freed, except what a failed kernel makes unfreeable."""
        kept = self.allocated or self.contexts
        return not self.stack and (self._has_failed or not kept)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Replaces the process's driver by a FakeCuda."""
    cuda = FakeCuda()
    monkeypatch.setattr(driver, "driver", lambda: driver.Driver(cuda))
    return cuda
