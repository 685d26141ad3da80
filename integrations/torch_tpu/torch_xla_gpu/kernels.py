"""Register kernels that are made with torch_xla_ext/kernel.h."""

import ctypes
import os
import threading
from typing import NamedTuple

from torch_xla_gpu import device, front
from xla_kernels import Schema, kernel_symbols, libraries


class Target(NamedTuple):
    """A registered kernel.

    Attributes:
        name: the name in the kernel's signature.
        platform: "CUDA" or "Host".
    """

    name: str
    platform: str


class _Registered(NamedTuple):
    called: str  # the name in programs
    address: int
    schema: Schema
    library: ctypes.CDLL


# The registrations by name, the last one last. XLA cannot replace a handler: compiled programs keep
# their kernel, and later ones call another name.
_kernels: dict[str, list[_Registered]] = {}
_lock = threading.Lock()


def register_kernel(name: str, library: str | os.PathLike[str]) -> list[Target]:
    """Register a kernel's FFI entry for this process's device.

    Registering another function under the same name takes effect for calls that are traced from
    then on; programs that were compiled before keep theirs. The same holds for a library that was
    rebuilt, even under the same path.

    Args:
        name: the target: the name in the kernel's signature.
        library: the path of the shared library.

    Raises:
        FileNotFoundError: the library does not exist.
        OSError: the file is not a library for this machine, or cannot be loaded.
        AttributeError: the library has no kernel of this name, or none for this platform.
        TypeError: an argument has a wrong type, for example if name and library are swapped.
        PluginError: XLA refuses the kernel.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(
            f"register_kernel: name must be a str that is not empty, but is {name!r}; the order "
            "is register_kernel(name, library)"
        )
    if not isinstance(library, (str, os.PathLike)):
        raise TypeError(
            f"register_kernel: library must be a path, but is of type {type(library).__name__}"
        )
    platform = device.current().platform
    loaded = libraries.load(library)
    schema = kernel_symbols.schema_of(loaded, name)
    if schema is None:
        names = kernel_names(loaded)
        raise AttributeError(
            f"{library} has no kernel {name!r} made with XLA_KERNEL_CUDA or XLA_KERNEL_HOST"
            + libraries.alike(name, names or libraries.exported(loaded))
        )
    symbol = kernel_symbols.entry(name, platform, "ffi")
    if libraries.function_of(loaded, symbol) is None:
        macro = {"CUDA": "XLA_KERNEL_CUDA", "Host": "XLA_KERNEL_HOST"}[platform]
        raise AttributeError(
            f"{library} has the kernel {name!r} for another platform, but not for {platform!r}: "
            f"link the file with {macro}, or use another device (PJRT_DEVICE)"
        )
    address = libraries.find(loaded, name, symbol)
    with _lock:
        versions = _kernels.setdefault(name, [])
        if not versions or versions[-1].address != address:
            called = name if not versions else f"{name}#{len(versions) + 1}"
            front.register_handler(called, platform, address)
            versions.append(_Registered(called, address, schema, loaded))
    return [Target(name, platform)]


def kernel_names(library: ctypes.CDLL) -> list[str]:
    """Return the kernels in a library that are made with kernel.h."""
    exported = libraries.exported(library)
    return [symbol.removesuffix("Schema") for symbol in exported if symbol.endswith("Schema")]


def register_all(library: str | os.PathLike[str]) -> list[Target]:
    """Register each kernel in a library that has an entry for this process's device."""
    loaded = libraries.load(library)
    platform = device.current().platform
    return [
        target
        for name in kernel_names(loaded)
        if libraries.function_of(loaded, kernel_symbols.entry(name, platform, "ffi")) is not None
        for target in register_kernel(name, library)
    ]


def registered_targets() -> list[Target]:
    """Return the registered kernels, sorted."""
    return sorted(Target(name, device.current().platform) for name in _kernels)


def schema(name: str) -> Schema | None:
    """Return the schema of the kernel that calls of `name` run; None without one."""
    versions = _kernels.get(name)
    return versions[-1].schema if versions else None


def called_name(name: str, text: str) -> str:
    """Return the name, in programs, of the last kernel registered as `name` with this schema.

    Raises:
        ValueError: there is no such kernel.
    """
    for registered in reversed(_kernels.get(name, [])):
        if registered.schema.text == text:
            return registered.called
    raise ValueError(
        f"custom-call target {name!r}: no kernel with the schema {text!r} is registered"
    )
