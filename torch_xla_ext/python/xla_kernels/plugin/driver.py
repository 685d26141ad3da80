"""Properties of the GPU, from CUDA's driver."""

import ctypes
import functools


@functools.cache
def compute_capability() -> int:
    """Return the compute capability of GPU 0, 90 for 9.0.

    Raises:
        RuntimeError: there is no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise RuntimeError("there is no CUDA driver, and so no GPU") from None
    numbers = [ctypes.c_int() for _ in range(2)]
    failed = driver.cuInit(0)
    for number, attribute in zip(numbers, (75, 76), strict=True):  # major, minor
        failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, 0)
    if failed:
        raise RuntimeError(f"CUDA error {failed}: the driver does not name GPU 0's capability")
    return numbers[0].value * 10 + numbers[1].value
