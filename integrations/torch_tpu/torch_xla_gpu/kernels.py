"""Register kernels: those made with torch_xla_ext/kernel.h, and functions of TVM-FFI."""

import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

from torch_xla_gpu import device, front
from xla_kernels import Schema, kernel_symbols, libraries, tvm_ffi


class Target(NamedTuple):
    """A registered kernel.

    Attributes:
        name: the name in the kernel's signature.
        platform: "CUDA" or "Host".
    """

    name: str
    platform: str


class _Registered(NamedTuple):
    called: str | None  # the name in programs; None for a kernel of another platform
    address: int
    schema: Schema | None
    library: object


# The registrations by name, the last one last. XLA cannot replace a handler: compiled programs keep
# their kernel, and later ones call another name.
_kernels: dict[str, list[_Registered]] = {}
_lock = threading.Lock()


def register_kernel(
    name: str, library: object, *, abi: str = "kernel.h", **options: object
) -> list[Target]:
    """Register a kernel's FFI entry for this process's device.

    Registering another function under the same name takes effect for calls that are traced from
    then on; programs that were compiled before keep theirs. The same holds for a library that was
    rebuilt, even under the same path.

    With ``abi="tvm-ffi"``, registers a TVM-FFI function, as torch_xla_ext.register_kernel does.

    Args:
        name: the target: the name in the kernel's signature.
        library: the path of the shared library; for "tvm-ffi" also a function.
        abi: "kernel.h" or "tvm-ffi".
        options: for "tvm-ffi", the function's symbol, arguments, signature, parameters, cuda_graph,
            and platform, which is by default that of the device.

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
    platform = device.current().platform
    if abi == "tvm-ffi":
        return tvm_ffi.register_tvm_ffi_kernel(name, library, **{"platform": platform, **options})
    loaded = kernel_symbols.load(library, abi, options)
    schema = kernel_symbols.schema_of(loaded, name)
    if schema is None:
        raise kernel_symbols.missing(library, loaded, name)
    symbol = kernel_symbols.entry(name, platform, "ffi")
    if libraries.function_of(loaded, symbol) is None:
        macro = {"CUDA": "XLA_KERNEL_CUDA", "Host": "XLA_KERNEL_HOST"}[platform]
        raise AttributeError(
            f"{library} has the kernel {name!r} for another platform, but not for {platform!r}: "
            f"link the file with {macro}, or use another device (PJRT_DEVICE)"
        )
    _add(name, libraries.find(loaded, name, symbol), schema, loaded)
    return [Target(name, platform)]


def register_tvm_ffi(
    name: str,
    platform: str,
    function: int,
    words: Sequence[str],
    cuda_graph: bool,
    library: object,
    schema: Schema | None,
) -> list[Target]:
    """Implement FrontEnd.register_tvm_ffi."""
    if platform != (own := device.current().platform):
        raise ValueError(
            f"custom-call target {name!r}: platform must be {own!r}, that of this process's "
            f"device, but is {platform!r}"
        )
    text = "" if schema is None else schema.text
    _add(
        name,
        front.tvm_ffi_handler(name, platform, function, words, cuda_graph, text),
        schema,
        library,
    )
    return [Target(name, platform)]


def _add(name: str, address: int, schema: Schema | None, library: object) -> None:
    with _lock:
        versions = _kernels.setdefault(name, [])
        if not versions or versions[-1].address != address:
            called = name if not versions else f"{name}#{len(versions) + 1}"
            front.register_handler(called, device.current().platform, address)
            versions.append(_Registered(called, address, schema, library))


def register_all(library: str | os.PathLike[str]) -> None:
    """Register each kernel in a library.

    A kernel without an entry for this process's device has a schema, so that operators of it can be
    defined, and cannot be called.
    """
    loaded = libraries.load(library)
    platform = device.current().platform
    for name in kernel_symbols.names(loaded):
        if libraries.function_of(loaded, kernel_symbols.entry(name, platform, "ffi")) is not None:
            register_kernel(name, library)
        else:
            schema = kernel_symbols.schema_of(loaded, name)
            _kernels.setdefault(name, []).append(_Registered(None, 0, schema, loaded))


def registered_targets() -> list[Target]:
    """Return the registered kernels, sorted."""
    platform = device.current().platform
    return sorted(
        Target(name, platform)
        for name, versions in _kernels.items()
        if versions[-1].called is not None
    )


def schema(name: str) -> Schema | None:
    """Return the schema of the kernel that calls of `name` run; None without one."""
    versions = _kernels.get(name)
    return versions[-1].schema if versions else None


def called_name(name: str, text: str) -> str:
    """Return the name, in programs, of the last kernel registered as `name` with this schema.

    Raises:
        ValueError: there is no such kernel.
        NotImplementedError: the kernel is for another platform.
    """
    for registered in reversed(_kernels.get(name, [])):
        if registered.schema is not None and registered.schema.text == text:
            if registered.called is None:
                raise NotImplementedError(
                    f"custom-call target {name!r} has no entry for {device.current().platform!r}"
                )
            return registered.called
    raise ValueError(
        f"custom-call target {name!r}: no kernel with the schema {text!r} is registered"
    )
