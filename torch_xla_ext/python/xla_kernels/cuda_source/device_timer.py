"""Time launches on GPU 0 with CUDA's driver API, in separately allocated memory."""

import contextlib
import ctypes
import functools
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
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_BLOCK = 1 << 20  # bytes of random numbers, which are repeated to fill arrays
_MOST_COPIES = 16
_GRAPH_MS = 2.0  # the approximate time of all launches of a graph
_MOST_LAUNCHES = 1000


class NoMemoryError(RuntimeError):
    """The device has too little free memory for the arrays."""


class LostContextError(RuntimeError):
    """A kernel failed while it ran, so the process can no longer use the GPU."""


def device_name() -> str:
    """Return the name of GPU 0."""
    return cuda.device_name(_GPU)


class Timer:
    """Times launches with the same arrays; made by `timer`.

    The arrays are in memory of the timer; floats are random, other numbers are 0. Launches use
    several copies in turn, so that operands are read from the device's memory, as in a program, and
    not from its cache.
    """

    def __init__(self, stream: int, copies: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        self._call = cuda.driver()
        self._stream = stream
        self._copies = copies
        self._events = [ctypes.c_void_p() for _ in range(2)]
        for event in self._events:
            self._call("cuEventCreate", ctypes.byref(event), 0)

    def close(self) -> None:
        for event in self._events:
            _try(self._call, "cuEventDestroy_v2", event)

    def milliseconds(self, launch: Launcher, repetitions: int = 10) -> float:
        """Return the shortest time of a launch, among many in a CUDA graph.

        Raises:
            LostContextError: the kernel fails when it runs, as with a wrong address.
            RuntimeError: the kernel cannot be launched.
        """
        try:
            launch(*self._copies[0], self._stream)  # loads the module
            self._synchronize()
            count = len(self._copies)
            with self._graph(launch, count) as graph:
                least = min(self._elapsed(graph) for _ in range(3)) / count
            count = max(count, min(_MOST_LAUNCHES, int(_GRAPH_MS / max(least, 1e-6))))
            with self._graph(launch, count) as graph:
                return min(self._elapsed(graph) for _ in range(repetitions)) / count
        except RuntimeError as error:
            # After a kernel has failed, all further calls of the process for this GPU fail, too.
            try:
                self._call("cuCtxSynchronize")
            except DriverError:
                raise LostContextError(str(error)) from error
            raise

    def _synchronize(self) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(self._stream))

    @contextlib.contextmanager
    def _graph(self, launch: Launcher, count: int) -> Iterator[ctypes.c_void_p]:
        stream = ctypes.c_void_p(self._stream)
        with contextlib.ExitStack() as cleanup:
            graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
            self._call("cuStreamBeginCapture_v2", stream, _RELAXED)
            try:
                for i in range(count):
                    launch(*self._copies[i % len(self._copies)], self._stream)
            except BaseException:
                _try(self._call, "cuStreamEndCapture", stream, ctypes.byref(graph))
                _try(self._call, "cuGraphDestroy", graph)
                raise
            self._call("cuStreamEndCapture", stream, ctypes.byref(graph))
            cleanup.callback(self._call, "cuGraphDestroy", graph)
            flags = ctypes.c_ulonglong()
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, flags)
            cleanup.callback(self._call, "cuGraphExecDestroy", executable)
            yield executable

    def _elapsed(self, graph: ctypes.c_void_p) -> float:
        stream, (begin, end) = ctypes.c_void_p(self._stream), self._events
        self._call("cuEventRecord", begin, stream)
        self._call("cuGraphLaunch", graph, stream)
        self._call("cuEventRecord", end, stream)
        self._synchronize()
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

        def allocated(array: ArrayType) -> int:
            address = _allocated(array)
            cleanup.callback(_try, call, "cuMemFree_v2", ctypes.c_uint64(address))
            return address

        copies = []
        for _ in range(_num_copies([*operands, *results])):
            inputs = [allocated(each) for each in operands]
            outputs = [
                inputs[aliases[i]] if i in aliases else allocated(each)
                for i, each in enumerate(results)
            ]
            for address, array in zip(inputs, operands, strict=True):
                _fill(address, array)
            copies.append((inputs, outputs))
        made = Timer(stream.value, copies)
        cleanup.callback(made.close)
        yield made


def _try(function: Callable[..., object], *arguments: object) -> None:
    """Call a function that frees something, and ignore its errors after a kernel's failure."""
    with contextlib.suppress(DriverError):
        function(*arguments)


def _num_copies(arrays: Sequence[ArrayType]) -> int:
    """Return how many copies together exceed the cache, but fit into free memory."""
    size = max(sum(array.size * array.dtype.itemsize for array in arrays), 1)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.driver()("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    wanted = -(-2 * cuda.attribute(_GPU, _L2_SIZE) // size)
    return max(1, min(wanted, _MOST_COPIES, free.value // 2 // size))


def _allocated(array: ArrayType) -> int:
    size = max(array.size * array.dtype.itemsize, 1)
    try:
        return cuda.allocate(size)
    except DriverError as error:
        if error.code != _OUT_OF_MEMORY:
            raise
        raise NoMemoryError(f"the GPU has no {size} bytes free for {array}") from error


def _fill(address: int, array: ArrayType) -> None:
    size = array.size * array.dtype.itemsize
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
