"""Kernels of other libraries, which `cuda_kernel` takes in torch_xla_ext only."""

from typing import NoReturn


def read(kernel: object) -> NoReturn:
    """Refuses a kernel that is no source text."""
    raise TypeError(
        "cuda_kernel: source must be CUDA C++ or a path, but is a "
        f"{type(kernel).__name__}; kernels of CuPy, Numba, cuTile, Triton and TVM-FFI need "
        "torch_xla_ext"
    )
