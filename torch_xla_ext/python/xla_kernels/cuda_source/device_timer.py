"""Time launches on GPU 0 with CUDA's driver API, in separately allocated memory."""

import contextlib
import ctypes
import functools
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from xla_kernels.plugin import driver as cuda
from xla_kernels.plugin.driver import DriverError
from xla_kernels.signature.schema import ArrayType

# Launches one kernel, given the addresses of operands and of results, and the stream.
Launcher = Callable[[Sequence[int], Sequence[int], int], None]

_GPU = 0
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_L2_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_BLOCK = 1 << 20  # bytes of random numbers, which are repeated to fill arrays
# The least number of bytes that are written to clear the L2 cache. On an H200 that takes 60
# microseconds, in which the host enqueues the launch and the events around it.
_LEAST_CLEARED = 256 << 20
_SUM_MS = 10.0  # the approximate time of all launches of a measurement
_LEAST_LAUNCHES, _MOST_LAUNCHES = 10, 100


class NoMemoryError(RuntimeError):
    """The device has too little free memory for the arrays."""


class LostContextError(RuntimeError):
    """A kernel failed while it ran, so the process can no longer use the GPU."""


def device_name() -> str:
    """Return the name of GPU 0."""
    return cuda.device_name(_GPU)


class Timer:
    """Times launches with the same arrays; made by `timer`.

    The arrays are in memory of the timer; floats are random, other numbers are 0. The GPU's L2
    cache is cleared before each launch, as by Triton's do_bench, so that operands are read from the
    device's memory.
    """

    def __init__(
        self, stream: int, operands: Sequence[int], results: Sequence[int], cleared: tuple[int, int]
    ) -> None:
        """Make the events.

        Args:
            operands, results: the addresses of the arrays.
            cleared: address and size of memory that is written to clear the cache.
        """
        self._call = cuda.driver()
        self._stream = stream
        self._arrays = (operands, results)
        self._cleared = cleared
        self._events = [(ctypes.c_void_p(), ctypes.c_void_p()) for _ in range(_MOST_LAUNCHES)]
        for event in itertools.chain(*self._events):
            self._call("cuEventCreate", ctypes.byref(event), 0)

    def close(self) -> None:
        for event in itertools.chain(*self._events):
            _try(self._call, "cuEventDestroy_v2", event)

    def milliseconds(self, launch: Launcher) -> float:
        """Return the time of a launch: the mean of the faster half of many.

        Raises:
            LostContextError: the kernel fails when it runs, as with a wrong address.
            RuntimeError: the kernel cannot be launched.
        """
        try:
            self._times(launch, 1)  # loads the module
            about = min(self._times(launch, 3))
            count = int(_SUM_MS / max(about, 1e-6))
            count = max(_LEAST_LAUNCHES, min(count, _MOST_LAUNCHES))
            return statistics.fmean(sorted(self._times(launch, count))[: count // 2])
        except RuntimeError as error:
            # After a kernel has failed, all further calls of the process for this GPU fail, too.
            try:
                self._call("cuCtxSynchronize")
            except DriverError:
                raise LostContextError(str(error)) from error
            raise

    def _times(self, launch: Launcher, count: int) -> list[float]:
        """Return the milliseconds of each of several launches."""
        stream = ctypes.c_void_p(self._stream)
        address, size = ctypes.c_uint64(self._cleared[0]), ctypes.c_size_t(self._cleared[1])
        events = self._events[:count]
        for begin, end in events:
            self._call("cuMemsetD8Async", address, ctypes.c_ubyte(0), size, stream)
            self._call("cuEventRecord", begin, stream)
            launch(*self._arrays, self._stream)
            self._call("cuEventRecord", end, stream)
        self._call("cuStreamSynchronize", stream)
        return [self._elapsed(begin, end) for begin, end in events]

    def _elapsed(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value


@contextlib.contextmanager
def timer(
    operands: Sequence[ArrayType], results: Sequence[ArrayType], aliases: Mapping[int, int]
) -> Iterator[Timer]:
    """Yield a timer of launches with these arrays, on GPU 0.

    Args:
        aliases: {result: operand} for results in an operand's buffer.

    Raises:
        NoMemoryError: there is too little memory for the arrays.
    """
    call = cuda.driver()
    with contextlib.ExitStack() as cleanup:
        context = cuda.retain_context(_GPU)
        cleanup.callback(_try, cuda.release_context, _GPU)
        cleanup.enter_context(cuda.current(context))
        call("cuCtxSynchronize")
        stream = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        cleanup.callback(_try, call, "cuStreamDestroy_v2", stream)

        def allocated(size: int, what: object) -> int:
            address = _allocated(size, what)
            cleanup.callback(_try, call, "cuMemFree_v2", ctypes.c_uint64(address))
            return address

        inputs = [allocated(_num_bytes(each), each) for each in operands]
        outputs = [
            inputs[aliases[i]] if i in aliases else allocated(_num_bytes(each), each)
            for i, each in enumerate(results)
        ]
        for address, array in zip(inputs, operands, strict=True):
            _fill(address, array)
        size = max(_LEAST_CLEARED, 2 * cuda.attribute(_GPU, _L2_SIZE))
        made = Timer(stream.value, inputs, outputs, (allocated(size, "clearing its cache"), size))
        cleanup.callback(made.close)
        yield made


def _try(function: Callable[..., object], *arguments: object) -> None:
    """Call a function that frees something, and ignore its errors after a kernel's failure."""
    with contextlib.suppress(DriverError):
        function(*arguments)


def _num_bytes(array: ArrayType) -> int:
    return array.size * array.dtype.itemsize


def _allocated(size: int, what: object) -> int:
    size = max(size, 1)
    try:
        return cuda.allocate(size)
    except DriverError as error:
        if error.code != _OUT_OF_MEMORY:
            raise
        raise NoMemoryError(f"the GPU has no {size} bytes free for {what}") from error


def _fill(address: int, array: ArrayType) -> None:
    size = _num_bytes(array)
    if not array.dtype.is_floating_point or not size:
        return
    values = _random(array.dtype)[:size]
    data = ctypes.create_string_buffer(values, len(values))
    call, done = cuda.driver(), len(values)
    call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(done))
    while done < size:
        count = min(done, size - done)
        target, source = ctypes.c_uint64(address + done), ctypes.c_uint64(address)
        call("cuMemcpyDtoD_v2", target, source, ctypes.c_size_t(count))
        done += count


@functools.cache
def _random(dtype: torch.dtype) -> bytes:
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.float4_e2m1fn_x2:  # every byte is a valid value
        return torch.randint(256, (_BLOCK,), generator=generator).to(torch.uint8).numpy().tobytes()
    numbers = torch.randn(_BLOCK // dtype.itemsize, generator=generator)
    return numbers.to(dtype).view(torch.uint8).numpy().tobytes()
