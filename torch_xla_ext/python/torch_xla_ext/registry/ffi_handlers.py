"""Find the handlers of an FFI target, by stage, and register the types of their states."""

import ctypes
from collections.abc import Callable, Mapping

import torch_xla

from xla_kernels import libraries
from xla_kernels.kernel_symbols import did_you_mean

_XLAC = torch_xla._XLAC

# In the order of XLA_FFI_Handler_Bundle in XLA's FFI 0.5.
STAGES = ("instantiate", "prepare", "initialize", "execute", "record")
# The stages in the bundle of every version.
_BUNDLED = STAGES[:4]
# The suffix of a library's handler for "record", beside a bundle or a kernel's entry.
_RECORD = "Record"
# Suffixes, after the target's name, of a library's functions that return its bundle.
BUNDLES = {"CUDA": "Bundle", "Host": "HostBundle"}
# The suffixes of the functions that return its state's type.
_TYPE_ID, _TYPE_INFO = "TypeId", "TypeInfo"

# Keeps the registered types alive, because XLA has only their addresses.
_types: list[object] = []


class _Bundle(ctypes.Structure):
    """XLA_FFI_Handler_Bundle of XLA's FFI 0.1. Newer versions append to it."""

    _fields_ = [(stage, ctypes.c_void_p) for stage in _BUNDLED]


class _TypeInfo(ctypes.Structure):
    """XLA_FFI_TypeInfo."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def bundle_symbol(name: str, platform: str) -> str:
    """Return the name of a library's function that returns the handlers of the target `name`."""
    return name + BUNDLES[platform]


def _call(function: int) -> int:
    """Call a C function, and return the pointer that it returns."""
    return ctypes.CFUNCTYPE(ctypes.c_void_p)(function)() or 0


def handlers(name: str, address: int, what: str) -> dict[str, int]:
    """Return the handlers, by stage, at an address of a handler or of an XLA_FFI_Handler_Bundle."""
    if libraries.is_code(address):
        return {"execute": address}
    return _handlers_of_bundle(name, address, what)


def _handlers_of_bundle(name: str, address: int, what: str) -> dict[str, int]:
    if not libraries.is_data(address, ctypes.sizeof(_Bundle)):
        raise ValueError(
            f"custom-call target {name!r}: {what} is {address:#x}, which is the address neither of "
            "code nor of data in this process; pass that of a handler or of an "
            "XLA_FFI_Handler_Bundle"
        )
    bundle = _Bundle.from_address(address)
    found = {stage: getattr(bundle, stage) for stage in _BUNDLED if getattr(bundle, stage)}
    for stage, function in found.items():
        if not libraries.is_code(function):
            raise ValueError(
                f"custom-call target {name!r}: {what} is {address:#x}, which is not the address of "
                f"an XLA_FFI_Handler_Bundle: its {stage} is {function:#x}, which is not the "
                "address of code in this process"
            )
    return checked(name, found)


def checked(name: str, found: Mapping[str, object]) -> dict[str, object]:
    """Return the handlers that are not None; raise ValueError for wrong stages."""
    for stage in found:
        if stage not in STAGES:
            known = "; a target's stages are " + ", ".join(map(repr, STAGES))
            raise ValueError(
                f"custom-call target {name!r}: unknown stage {stage!r}"
                + (did_you_mean(stage, STAGES) if isinstance(stage, str) else "")
                + known
            )
    present = {stage: found[stage] for stage in STAGES if found.get(stage) is not None}
    if "execute" not in present:
        has = ", ".join(map(repr, present)) or "no handler at all"
        raise ValueError(
            f"custom-call target {name!r}: expected a handler for 'execute', which every target "
            f"has, but got {has}"
        )
    return present


def of_library(name: str, library: ctypes.CDLL, platform: str) -> dict[str, int] | None:
    """Return the handlers of a library's function `bundle_symbol`; None if it has none."""
    symbol = bundle_symbol(name, platform)
    if libraries.function_of(library, symbol) is None:
        return None
    address = _call(libraries.find(library, name, symbol))
    return _handlers_of_bundle(name, address, f"the result of {symbol} of {library._name}")


def record_of_library(name: str, library: ctypes.CDLL, platform: str) -> dict[str, int]:
    """Return {"record": handler} for the library's handler `<name>Record`; {} without one."""
    symbol = name + _RECORD
    if platform != "CUDA" or libraries.function_of(library, symbol) is None:
        return {}
    return {"record": libraries.find(library, name, symbol)}


def register_type_of_library(name: str, library: ctypes.CDLL, platform: str) -> None:
    """Register the type that a library's function `<name>TypeId` returns, if it has one."""
    if (type_id := libraries.function_of(library, name + _TYPE_ID)) is None:
        return
    register_ffi_type(
        # A rebuilt library has a different type.
        f"{name} of {library._name}",
        type_id,
        type_info=libraries.function_of(library, name + _TYPE_INFO),
        platform=platform,
    )


def register_ffi_type(
    name: str, type_id: object, *, type_info: object = None, platform: str = "CUDA"
) -> None:
    """Register the type of the state that an FFI target's handlers share.

    Register a type before a program that uses it is compiled. Registering the same type again does
    nothing.

    Args:
        name: any name; no other type may have it.
        type_id: the state's ``static XLA_FFI_TypeId id``: a PyCapsule with its address, the
            address, or a ctypes function that returns the address. Or, as in JAX, a dictionary
            {"type_id": …, "type_info": …}.
        type_info: the XLA_FFI_TypeInfo that headers of XLA's FFI 0.2 and newer make, given in
            the same ways.
        platform: "CUDA", or "Host" for the CPU.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: the name is empty or belongs to another type, the platform is unknown, an
            address does not point to data, or the dictionary has other keys.
        RuntimeError: XLA or the PJRT plugin refuses the type.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"register_ffi_type: name must be a str, but is of type {type(name).__name__}"
        )
    if isinstance(type_id, Mapping):
        known = {"type_id", "type_info"}
        if "type_id" not in type_id or set(type_id) - known or type_info is not None:
            raise ValueError(
                f"FFI type {name!r}: expected a dictionary with the key 'type_id', optionally "
                f"'type_info', and no type_info beside it, but got the keys {list(type_id)}"
            )
        type_id, type_info = type_id["type_id"], type_id.get("type_info")
    address = _data_address(name, "type_id", type_id, 8, writable=True)
    deleter = 0
    if type_info is not None:
        info = _data_address(name, "type_info", type_info, ctypes.sizeof(_TypeInfo))
        deleter = _TypeInfo.from_address(info).deleter or 0
        if not libraries.is_code(deleter):
            raise ValueError(
                f"FFI type {name!r}: type_info has the deleter {deleter:#x}, which is not the "
                "address of code in this process; pass an XLA_FFI_TypeInfo"
            )
    _XLAC._xla_register_ffi_type(name, address, deleter, platform)
    _types.append((type_id, type_info))


def _data_address(name: str, what: str, value: object, size: int, writable: bool = False) -> int:
    address = address_of(value)
    if address is None:
        raise TypeError(
            f"FFI type {name!r}: {what} must be a PyCapsule, an address or a ctypes function, but "
            f"is of type {type(value).__name__}"
        )
    if isinstance(value, ctypes._CFuncPtr):
        address = _call(address)
    if not libraries.is_data(address, size, writable):
        raise ValueError(
            f"FFI type {name!r}: {what} is {address:#x}, which is not the address of data in this "
            f"process; pass that of the XLA_FFI_{'TypeId' if what == 'type_id' else 'TypeInfo'}"
        )
    return address


def address_of(function: object) -> int | None:
    """Return the address in an int, a ctypes function or a PyCapsule; None otherwise."""
    if isinstance(function, int) and not isinstance(function, bool):
        return function
    if isinstance(function, ctypes._CFuncPtr):
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    if type(function).__name__ == "PyCapsule":
        return libraries.capsule_address(function)
    return None


def of_stages(
    name: str, stages: Mapping[str, object], find: Callable[[str], int] | None = None
) -> dict[str, int]:
    """Return the handlers of a dictionary by stage.

    Args:
        name: the target.
        stages: capsules, addresses and ctypes functions; with `find`, symbols.
        find: the address of a symbol.
    """
    found = {}
    for stage, function in checked(name, stages).items():
        if find is not None and isinstance(function, str):
            found[stage] = find(function)
            continue
        address = address_of(function)
        if find is not None or address is None:
            expected = (
                "a PyCapsule, an address or a ctypes function"
                if find is None
                else "the name of a symbol"
            )
            raise TypeError(
                f"custom-call target {name!r}: stage {stage!r} must be {expected}, but is of type "
                f"{type(function).__name__}"
            )
        found[stage] = libraries.code_address(name, address, f"the address for {stage!r}")
    return found
