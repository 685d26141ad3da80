"""Find the symbols that a library exports for a kernel made with torch_xla_ext/kernel.h."""

import ctypes
import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from xla_kernels import libraries
from xla_kernels.signature.schema import Schema, SizeFunction

# The suffixes of the symbols of a kernel made with kernel.h, after the target's name.
ENTRIES = {
    ("CUDA", "untyped"): "",
    ("CUDA", "ffi"): "Ffi",
    ("Host", "untyped"): "Host",
    ("Host", "ffi"): "HostFfi",
}

_SIZE_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_uint8)
)


def size_function(address: int) -> SizeFunction:
    """Return the kernel's size function at an address (include/torch_xla_ext/sizes.h)."""
    function = _SIZE_FUNCTION(address)

    def size(sizes: Sequence[int], dtypes: Sequence[int]) -> int:
        return function(
            (ctypes.c_int64 * len(sizes))(*sizes), (ctypes.c_uint8 * len(dtypes))(*dtypes)
        )

    return size


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return an error text's suggestion: the `names` that are similar to `name`, if any."""
    near = difflib.get_close_matches(name, sorted(set(names)), n=3)
    return "; did you mean " + " or ".join(map(repr, near)) + "?" if near else ""


def entry(name: str, platform: str, api: str) -> str:
    """Return the symbol of a kernel's function for a platform and an API."""
    return name + ENTRIES[platform, api]


def load(library: object, abi: str, options: Mapping[str, object]) -> ctypes.CDLL:
    """Load the library of a kernel that is made with kernel.h; the arguments are register_kernel's.

    Raises:
        TypeError, ValueError: a wrong argument.
    """
    if abi != "kernel.h":
        raise ValueError(f"register_kernel: abi must be 'kernel.h' or 'tvm-ffi', but is {abi!r}")
    if options:
        raise TypeError(f"register_kernel: {next(iter(options))} requires abi='tvm-ffi'")
    if not isinstance(library, (str, os.PathLike)):
        raise TypeError(
            f"register_kernel: library must be a path, but is of type {type(library).__name__}"
        )
    return libraries.load(library)


def names(library: ctypes.CDLL) -> list[str]:
    """Return the kernels in a library that are made with kernel.h."""
    exported = libraries.exported(library)
    return [symbol.removesuffix("Schema") for symbol in exported if symbol.endswith("Schema")]


def missing(path: object, library: ctypes.CDLL, name: str) -> AttributeError:
    """Return the error for a library that has no kernel `name`."""
    return AttributeError(
        f"{path} has no kernel {name!r} made with XLA_KERNEL_CUDA or XLA_KERNEL_HOST"
        + libraries.alike(name, names(library) or libraries.exported(library))
    )


def schema_of(library: ctypes.CDLL, name: str) -> Schema | None:
    """Return the schema of a library's kernel `name`; None if it does not use kernel.h."""
    function = libraries.function_of(library, name + "Schema")
    if function is None:
        return None
    function.restype = ctypes.c_char_p
    result = Schema.parse(function().decode())
    if result.target != name:
        raise ValueError(
            f"custom-call target {name!r}: {library._name} returns for it the signature of "
            f"{result.target!r}: load libraries without RTLD_GLOBAL, and use different names "
            "for the C++ constants of two kernels"
        )
    functions = {}
    for size in result.open_sizes():
        function = libraries.function_of(library, f"{name}Size_{size}")
        if function is not None:
            functions[size] = size_function(ctypes.cast(function, ctypes.c_void_p).value)
    return replace(result, size_functions=functions)
