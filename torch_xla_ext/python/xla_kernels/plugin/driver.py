"""Call CUDA's driver, and query properties of the GPUs."""

import ctypes
import functools
from collections.abc import Collection, Iterator
from contextlib import contextmanager

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{MAJOR,MINOR}


class DriverError(RuntimeError):
    """There is no driver, or a call to it failed.

    Attributes:
        code: CUDA's error; 0 if there is no driver.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Driver:
    """Calls the driver's functions by name with ctypes arguments, as in `driver("cuInit", 0)`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __call__(self, function: str, *arguments: object, allowed: Collection[int] = ()) -> int:
        """Call a function of the driver.

        Args:
            allowed: error codes that are returned instead of raised.

        Returns:
            0, or one of the allowed errors.

        Raises:
            DriverError: the call failed; with the name of CUDA's error.
        """
        error = getattr(self._library, function)(*arguments)
        if error and error not in allowed:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(error, ctypes.byref(text))
            name = (text.value or b"an unknown error").decode()
            raise DriverError(f"CUDA's driver: {function}: {name} ({error})", error)
        return error


@functools.cache
def driver() -> Driver:
    """Return the process's driver, after initializing it.

    Raises:
        DriverError: there is no driver, or no GPU.
    """
    try:
        found = Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        raise DriverError(
            "there is no CUDA driver, so no GPU can be used: install the NVIDIA driver"
        ) from None
    found("cuInit", 0)
    return found


def retain_context(number: int) -> ctypes.c_void_p:
    """Return the GPU context that XLA uses, and keep it alive until `release_context`."""
    context = ctypes.c_void_p()
    driver()("cuDevicePrimaryCtxRetain", ctypes.byref(context), _device(number))
    return context


def release_context(number: int) -> None:
    """Release a context that `retain_context` returned."""
    driver()("cuDevicePrimaryCtxRelease_v2", _device(number))


@contextmanager
def current(context: ctypes.c_void_p) -> Iterator[None]:
    """In a block, make a context the thread's current one."""
    driver()("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        driver()("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def attribute(number: int, which: int) -> int:
    """Return a CUdevice_attribute of a GPU."""
    value = ctypes.c_int()
    driver()("cuDeviceGetAttribute", ctypes.byref(value), which, _device(number))
    return value.value


def cuda_version() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports: major and minor."""
    version = ctypes.c_int()
    driver()("cuDriverGetVersion", ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def device_count() -> int:
    """Return the number of GPUs that the process sees."""
    count = ctypes.c_int()
    driver()("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def device_name(number: int) -> str:
    """Return a GPU's name."""
    name = ctypes.create_string_buffer(256)
    driver()("cuDeviceGetName", name, len(name), _device(number))
    return name.value.decode()


def total_memory(number: int) -> int:
    """Return the bytes of a GPU's memory."""
    size = ctypes.c_size_t()
    driver()("cuDeviceTotalMem_v2", ctypes.byref(size), _device(number))
    return size.value


def can_access(number: int, peer: int) -> bool:
    """Return whether kernels on a GPU may access the memory of another GPU."""
    can = ctypes.c_int()
    driver()("cuDeviceCanAccessPeer", ctypes.byref(can), _device(number), _device(peer))
    return bool(can.value)


def allocate(num_bytes: int) -> int:
    """Allocate zeroed memory on the current context's GPU, and return its address."""
    address, size = ctypes.c_uint64(), ctypes.c_size_t(num_bytes)
    driver()("cuMemAlloc_v2", ctypes.byref(address), size)
    driver()("cuMemsetD8_v2", address, ctypes.c_ubyte(0), size)
    return address.value


@functools.cache
def compute_capability() -> int:
    """Return the compute capability of GPU 0, 90 for 9.0.

    Raises:
        DriverError: there is no GPU.
    """
    return attribute(0, _MAJOR) * 10 + attribute(0, _MINOR)


def _device(number: int) -> ctypes.c_int:
    device = ctypes.c_int()
    driver()("cuDeviceGet", ctypes.byref(device), number)
    return device
