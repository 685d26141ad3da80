"""Times launches on GPU 0, in memory of its own, by CUDA's driver."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from xla_kernels.signature.schema import ArrayType

# Launches one kernel: gets the addresses of operands and of results, and the stream.
Launcher = Callable[[Sequence[int], Sequence[int], int], None]

_L2_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_BLOCK = 1 << 20  # bytes of random numbers, which arrays repeat
_MOST_COPIES = 16
_GRAPH_MS = 2.0  # how long the launches of a graph take together, about
_MOST_LAUNCHES = 1000


class DeviceError(RuntimeError):
    """The driver refuses something."""


class _Driver:
    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)

    def __call__(self, function: str, *arguments: object) -> None:
        failed = getattr(self._library, function)(*arguments)
        if failed:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(failed, ctypes.byref(text))
            raise DeviceError(f"{function}: {(text.value or b'?').decode()}")


@functools.cache
def _driver() -> _Driver:
    return _Driver()


@functools.cache
def device_name() -> str:
    """As the driver calls GPU 0."""
    name = ctypes.create_string_buffer(256)
    _driver()("cuDeviceGetName", name, 256, 0)
    return name.value.decode()


class Timer:
    """Times launches that have the same arrays. `timer` makes it.

    The arrays are in the timer's own memory: floats are random, other numbers are 0. There are
    several copies, which launches use in turn, so that they find their operands in the device's
    memory as far as they would in a program, and not in its cache.
    """

    def __init__(self, stream: int, copies: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        self._stream = stream
        self._copies = copies
        self._events = [ctypes.c_void_p() for _ in range(2)]
        for event in self._events:
            _driver()("cuEventCreate", ctypes.byref(event), 0)

    def close(self) -> None:
        for event in self._events:
            _driver()("cuEventDestroy_v2", event)

    def milliseconds(self, launch: Launcher, repetitions: int = 10) -> float:
        """The least time of a launch, among many in a CUDA graph.

        Raises:
            RuntimeError: it cannot be launched.
        """
        launch(*self._copies[0], self._stream)  # loads the module
        _driver()("cuStreamSynchronize", ctypes.c_void_p(self._stream))
        count = len(self._copies)
        with self._graph(launch, count) as graph:
            least = min(self._elapsed(graph) for _ in range(3)) / count
        count = max(count, min(_MOST_LAUNCHES, int(_GRAPH_MS / max(least, 1e-6))))
        with self._graph(launch, count) as graph:
            return min(self._elapsed(graph) for _ in range(repetitions)) / count

    @contextmanager
    def _graph(self, launch: Launcher, count: int) -> Iterator[ctypes.c_void_p]:
        stream = ctypes.c_void_p(self._stream)
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        _driver()("cuStreamBeginCapture_v2", stream, _RELAXED)
        try:
            for i in range(count):
                launch(*self._copies[i % len(self._copies)], self._stream)
        finally:
            _driver()("cuStreamEndCapture", stream, ctypes.byref(graph))
        try:
            _driver()(
                "cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong()
            )
            yield executable
        finally:
            _driver()("cuGraphDestroy", graph)
            if executable:
                _driver()("cuGraphExecDestroy", executable)

    def _elapsed(self, graph: ctypes.c_void_p) -> float:
        driver, stream, (begin, end) = _driver(), ctypes.c_void_p(self._stream), self._events
        driver("cuEventRecord", begin, stream)
        driver("cuGraphLaunch", graph, stream)
        driver("cuEventRecord", end, stream)
        driver("cuStreamSynchronize", stream)
        milliseconds = ctypes.c_float()
        driver("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value


@contextmanager
def timer(
    operands: Sequence[ArrayType], results: Sequence[ArrayType], aliases: Mapping[int, int]
) -> Iterator[Timer]:
    """A timer of launches with such arrays, on GPU 0.

    Args:
        aliases: {result: operand}: results in an operand's buffer.

    Raises:
        DeviceError: there is no memory for them, for example.
    """
    driver, context = _driver(), ctypes.c_void_p()
    stream, allocated = ctypes.c_void_p(), []
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)  # which is XLA's, too
    driver("cuCtxPushCurrent_v2", context)
    try:
        driver("cuCtxSynchronize")
        driver("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        copies = []
        for _ in range(_num_copies([*operands, *results])):
            inputs = [_filled(each, allocated) for each in operands]
            outputs = [
                inputs[aliases[i]] if i in aliases else _allocated(each, allocated)
                for i, each in enumerate(results)
            ]
            copies.append((inputs, outputs))
        made = Timer(stream.value, copies)
        try:
            yield made
        finally:
            made.close()
    finally:
        for address in allocated:
            driver("cuMemFree_v2", ctypes.c_uint64(address))
        if stream:
            driver("cuStreamDestroy_v2", stream)
        driver("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        driver("cuDevicePrimaryCtxRelease_v2", 0)


def _num_copies(arrays: Sequence[ArrayType]) -> int:
    """As many as do not fit into the cache together, and take a part of the free memory."""
    size = sum(array.size * array.dtype.itemsize for array in arrays)
    cache, free, total = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
    _driver()("cuDeviceGetAttribute", ctypes.byref(cache), _L2_SIZE, 0)
    _driver()("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    wanted = -(-2 * cache.value // max(size, 1))
    return max(1, min(wanted, _MOST_COPIES, free.value // 2 // max(size, 1)))


def _allocated(array: ArrayType, allocated: list[int]) -> int:
    address = ctypes.c_uint64()
    size = max(array.size * array.dtype.itemsize, 1)
    _driver()("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
    allocated.append(address.value)
    _driver()("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(size))
    return address.value


def _filled(array: ArrayType, allocated: list[int]) -> int:
    address, size = _allocated(array, allocated), array.size * array.dtype.itemsize
    if not array.dtype.is_floating_point or not size:
        return address
    values = _random(array.dtype)[:size]
    data = ctypes.create_string_buffer(values, len(values))
    _driver()("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(values)))
    done = len(values)
    while done < size:
        count = min(done, size - done)
        target, source = ctypes.c_uint64(address + done), ctypes.c_uint64(address)
        _driver()("cuMemcpyDtoD_v2", target, source, ctypes.c_size_t(count))
        done += count
    return address


@functools.cache
def _random(dtype: torch.dtype) -> bytes:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(_BLOCK // dtype.itemsize, generator=generator)
    return numbers.to(dtype).view(torch.uint8).numpy().tobytes()
