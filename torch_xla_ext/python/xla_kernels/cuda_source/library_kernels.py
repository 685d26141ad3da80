"""Read kernels of other libraries, which `cuda_kernel` accepts in place of source text."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from xla_kernels.cuda_source.machine_code import Code

# The reading modules and the kernels' classes, by the classes' modules. The libraries are not
# imported here: a caller with such an object has imported them.
_READERS = {
    ("cupy", "RawKernel"): "cupy_kernels",
    ("numba", "CUDADispatcher"): "numba_kernels",
    ("cuda.tile", "kernel"): "cutile_kernels",
}
# Objects that are not for `cuda_kernel`, with the function to use instead.
_OTHERWISE = {
    ("triton", "JITFunction"): "torch_xla_ext.triton_call(kernel, …)",
    ("triton", "Autotuner"): "torch_xla_ext.triton_call(kernel, …)",
    ("tvm_ffi", "Function"): "torch_xla_ext.tvm_ffi_call(function, …)",
    ("cutlass", "JitCompiledFunction"): "torch_xla_ext.tvm_ffi_call(function, …)",
    ("helion", "Kernel"): "kernel(…)",
}


@dataclass(frozen=True)
class LibraryKernel:
    """A kernel described by another library's object.

    Attributes:
        name: the kernel's name.
        code: where the kernel's machine code comes from.
        fixed: the arguments of Configuration that the object determines.
    """

    name: str
    code: Code
    fixed: Mapping[str, object]


def read(kernel: object) -> LibraryKernel:
    """Read a kernel of another library.

    Raises:
        TypeError: `kernel` is not a kernel that can be read.
        ValueError: only the library itself can launch the kernel.
    """
    module = _found(kernel, _READERS)
    if module is not None:
        return importlib.import_module(f"xla_kernels.cuda_source.{module}").read(kernel)
    other = _found(kernel, _OTHERWISE)
    remedy = f"; call it by {other}" if other is not None else ""
    raise TypeError(
        "cuda_kernel: source must be CUDA C++, a path, or a kernel of CuPy, Numba or cuTile, but "
        f"is a {type(kernel).__name__}{remedy}"
    )


def _found(kernel: object, table: Mapping[tuple[str, str], str]) -> str | None:
    for class_ in type(kernel).__mro__:
        for (module, name), value in table.items():
            if class_.__name__ == name and f"{class_.__module__}.".startswith(f"{module}."):
                return value
    return None
