"""Read CuPy's RawKernel for `cuda_kernel`; NVRTC compiles its source, as for CuPy."""

import re
import sys
from pathlib import Path

from xla_kernels.cuda_source import cpp_types
from xla_kernels.cuda_source.compiler import Source
from xla_kernels.cuda_source.library_kernels import LibraryKernel
from xla_kernels.cuda_source.machine_code import SourceCode


def read(kernel: object) -> LibraryKernel:
    """Read a cupy.RawKernel for `cuda_kernel`.

    Raises:
        ValueError: the kernel was loaded from a file with machine code.
    """
    if kernel.code is None:
        raise ValueError(
            f"cuda_kernel: the RawKernel {kernel.name!r} is from {kernel.file_path}, whose types "
            "CuPy does not know; use CudaKernel.from_file(path, name, prototype='void …(…)')"
        )
    cupy = sys.modules[type(kernel).__module__.partition(".")[0]]
    folders = [Path(file, "../_core/include").resolve() for file in [cupy.__file__] if file]
    name = _expression(kernel.name)
    source = Source(kernel.code, None, name, tuple(kernel.options), tuple(folders))
    fixed = {"cooperative": True} if kernel.enable_cooperative_groups else {}
    return LibraryKernel(name, SourceCode(source), fixed)


def _expression(name: str) -> str:
    """Return a kernel's name expression: RawModule.get_function gives its kernels mangled names."""
    text = cpp_types.demangled(name)
    if text is None:
        return name
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ")") - (text[i] == "(")
        if depth == 0:
            return re.sub(r"^void ", "", text[:i])
    return name
