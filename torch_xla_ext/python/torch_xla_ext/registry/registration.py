"""Register functions of shared libraries as custom-call targets."""

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch_xla

from torch_xla_ext.registry import ffi_handlers
from torch_xla_ext.registry.platforms import APIS, PLATFORMS, platform_of
from xla_kernels import libraries
from xla_kernels.kernel_symbols import ENTRIES, entry, schema_of, size_function
from xla_kernels.signature import parse
from xla_kernels.signature.schema import Schema

_XLAC = torch_xla._XLAC


class Target(NamedTuple):
    """A registered custom-call target."""

    name: str
    platform: str  # "CUDA" or "Host"
    api: str  # "untyped" or "ffi"

    @property
    def function(self) -> str:
        """Describe the function that new calls run: its address, symbol and library, if known."""
        return _XLAC._xla_custom_call_function(*self)


def _static_schemas() -> dict[str, Schema]:
    """Return the schemas of the kernels in the wheel."""
    schemas = {name: Schema.parse(text) for name, text in _XLAC._xla_kernel_schemas().items()}
    for target, name, address in _XLAC._xla_kernel_sizes():
        functions = {**schemas[target].size_functions, name: size_function(address)}
        schemas[target] = replace(schemas[target], size_functions=functions)
    return schemas


# The schemas of all functions that have one, by the target's name in HLO: a target that was
# registered again has several (_XLAC._xla_current_custom_call_target).
_schemas: dict[Target, Schema] = {
    Target(name, platform, api): schema
    for name, schema in _static_schemas().items()
    for platform in PLATFORMS
    for api in APIS
}
# The origins of the functions, which also keeps them alive: XLA has only their addresses, and a
# ctypes callback or a capsule would free its function. Libraries are never unloaded.
_libraries: dict[Target, object] = {}
# The sharding rules of targets, by name.
_sharding_rules: dict[str, str | None] = {}
# Held while a target is checked and registered.
_lock = threading.Lock()


def _current(name: str, platform: str, api: str) -> Target:
    return Target(_XLAC._xla_current_custom_call_target(name, platform, api), platform, api)


def device_platform() -> str:
    """Return XLA's platform name for PJRT_DEVICE: "CUDA", or "Host" for other values."""
    return platform_of(os.environ.get("PJRT_DEVICE", "")) or "Host"


def default_api(target: str) -> str:
    """Return the API that calls of `target` use: "ffi" if an FFI function is registered.

    XLA considers the untyped API legacy, and its GPU compiler puts only FFI calls into CUDA graphs.
    But if an untyped function was registered after the FFI function, calls use the untyped one.
    """
    if not _is_text(target):
        return "untyped"
    return _XLAC._xla_default_custom_call_api(target, device_platform())


def schema(target: str, api: str = "untyped") -> Schema | None:
    """Return the schema of the kernel that calls of `target` run; None without kernel.h.

    The kernel is that for the platform of this process's device.
    """
    return _schemas.get(_current(target, device_platform(), api))


def schema_of_any_platform(target: str) -> Schema | None:
    """Return a target's schema, even if the kernel is only registered for another platform."""
    first = device_platform()
    for platform in sorted(PLATFORMS, key=lambda name: name != first):
        for api in APIS:
            if found := _schemas.get(_current(target, platform, api)):
                return found
    return None


def call_with_schema(target: str, text: str) -> tuple[str, str]:
    """Return the name and the API to call the kernel with this schema; "ffi" if possible.

    Raises:
        ValueError: as name_with_schema.
    """
    api = default_api(target)
    if (current := schema(target, api)) is not None and current.text == text:
        return target, api
    try:
        return name_with_schema(target, text, "ffi"), "ffi"
    except ValueError:
        return name_with_schema(target, text, "untyped"), "untyped"


def name_with_schema(
    target: str, text: str, api: str = "untyped", platform: str | None = None
) -> str:
    """Return the name by which to call the kernel last registered as `target` with this schema.

    It is `target` itself, unless other functions have been registered under that name since.

    Args:
        platform: "CUDA" or "Host"; by default that of this process's device.

    Raises:
        ValueError: there is no such kernel.
    """
    platform = platform or device_platform()
    current = _schemas.get(_current(target, platform, api))
    if current is not None and current.text == text:
        return target
    for known, other in reversed(list(_schemas.items())):
        name, _, number = known.name.partition("#")
        if (name, *known[1:]) == (target, platform, api) and other.text == text:
            return f"{name}#{number or 1}"
    raise ValueError(
        f"custom-call target {target!r}: no kernel with the schema {text!r} is registered for "
        f"{platform!r} and api={api!r}"
    )


def register_custom_call(
    name: str,
    library: object,
    *,
    symbol: str | Mapping[str, str] | None = None,
    platform: str = "CUDA",
    api: str | None = None,
    command_buffer_compatible: bool = False,
    sharding_rule: str | None = None,
    signature: str | None = None,
    parameters: str = "",
) -> None:
    """Register a function as the custom-call target `name`.

    Call it before or after the client is created, from any thread.

    Registering another function under the same name takes effect immediately: calls that are traced
    from then on run it, and programs that were compiled before keep theirs. The same holds for a
    library that was rebuilt, even under the same path.

    Args:
        name: the target, by which calls refer to the function.
        library: the path of a shared library or a ctypes.CDLL that contains `symbol`; or
            the function itself: a ctypes function, a PyCapsule with its address, or the address.
            With api="ffi" also the address of an XLA_FFI_Handler_Bundle, or a dictionary of the
            handlers of several stages, {"instantiate": …, "execute": …}, as jax.ffi takes it.
            The stages are "instantiate", "prepare", "initialize", "execute" and "record".
        symbol: the function's name in the library. By default `name`, or for a kernel that uses
            kernel.h, its entry for this platform and api. With api="ffi" also a dictionary of
            names by stage, and by default the library's function <name>Bundle (<name>HostBundle
            for "Host"), if it has one, which returns the XLA_FFI_Handler_Bundle. The type of the
            handlers' state, which the library's function <name>TypeId returns, is registered, too,
            and so is, for "CUDA", a handler <name>Record of the stage "record".
        platform: "CUDA", or "Host" for the CPU.
        api: "untyped", a function of API version 3, or "ffi", a handler of XLA's FFI. By default
            "ffi" if stages or command_buffer_compatible are given, which only it has, else
            "untyped".
        command_buffer_compatible: the FFI handler only enqueues work on its stream, so that CUDA
            graphs may capture it. A handler can also declare this itself, in its traits.
        sharding_rule: the default for custom_calls of the target that pass none.
        signature: for an FFI handler of another library, its operands and results, as in kernel.h
            but without the name: ``"(x: T[n, d]) -> (out: T[n, d]) where T: F16 | BF16"``. Calls
            are checked against it, and it can be the target of an operator (`define_operator`).
            It has no optional operands, which XLA's FFI does not know.
        parameters: with `signature`, the handler's attributes, ``"eps: f64, window: i64"``.

    Raises:
        FileNotFoundError: the library does not exist.
        OSError: the file is not a library for this machine, or cannot be loaded.
        AttributeError: the library has no such symbol; the text suggests similar ones.
        TypeError: an argument has a wrong type, for example if name and library are swapped, or
            needs api="ffi".
        ValueError: the name is empty or contains '#', the platform or api is unknown, the address
            is not that of code, the symbol is a kernel's entry for another platform or api, or a
            stage is unknown or "execute" missing.
    """
    check_name("register_custom_call", name)
    several = isinstance(library, Mapping) or isinstance(symbol, Mapping)
    schema = None if signature is None else _parsed(name, signature, parameters, api)
    if api is None:
        api = "ffi" if several or command_buffer_compatible else "untyped"
    check_choice("platform", platform, PLATFORMS)
    check_choice("api", api, APIS)
    if api != "ffi" and (several or command_buffer_compatible):
        raise TypeError(
            f"custom-call target {name!r}: "
            + ("handlers of stages require" if several else "command_buffer_compatible requires")
            + f" api='ffi', but api is {api!r}"
        )
    if isinstance(library, (str, os.PathLike)):
        library = libraries.load(library)
    brought = None
    if isinstance(library, ctypes.CDLL):
        functions, brought = _functions_of_library(name, library, symbol, platform, api)
    elif symbol is not None:
        raise TypeError(
            f"custom-call target {name!r}: symbol requires a library, but library is of type "
            f"{type(library).__name__}"
        )
    elif isinstance(library, Mapping):
        functions = ffi_handlers.of_stages(name, library)
    else:
        functions = _functions_at(name, library, api)

    def register() -> None:
        if api == "ffi":
            stages = (functions.get(stage, 0) for stage in ffi_handlers.STAGES)
            _XLAC._xla_register_ffi_handlers(name, *stages, platform, command_buffer_compatible)
        else:
            function = libraries.to_capsule(functions["execute"])
            version = APIS[api].registered_version
            _XLAC._xla_register_custom_call_target(name, function, platform, version)

    if schema is not None and brought is not None:
        raise TypeError(f"custom-call target {name!r}: the kernel has a signature of its own")
    add(Target(name, platform, api), register, library, schema or brought)
    set_sharding_rule(name, sharding_rule)


def _parsed(name: str, signature: str, parameters: str, api: str | None) -> Schema:
    """Return the schema that the caller declares for an FFI handler."""
    if api != "ffi":
        raise TypeError(
            f"custom-call target {name!r}: signature requires api='ffi', but api is {api!r}"
        )
    schema = parse.parse(name, signature, parameters, structs=True)
    if optional := [operand.name for operand in schema.operands if operand.optional]:
        raise ValueError(
            f"custom-call target {name!r}: operand {optional[0]} must not be optional, because a "
            "handler of XLA's FFI receives all its operands"
        )
    return schema


def _functions_of_library(
    name: str, library: ctypes.CDLL, symbol: str | Mapping[str, str] | None, platform: str, api: str
) -> tuple[dict[str, int], Schema | None]:
    """Return the functions of a library by stage, and the schema if they are those of kernel.h."""

    def find(symbol: str) -> int:
        return libraries.find(library, name, symbol)

    if api == "ffi":
        ffi_handlers.register_type_of_library(name, library, platform)
    if isinstance(symbol, Mapping):
        return ffi_handlers.of_stages(name, symbol, find), None
    known = schema_of(library, name)
    is_bundle = api == "ffi" and symbol is None and known is None
    record = {}
    if api == "ffi" and symbol is None:
        record = ffi_handlers.record_of_library(name, library, platform)
    if is_bundle and (functions := ffi_handlers.of_library(name, library, platform)):
        return functions | record, None
    symbol = symbol or (entry(name, platform, api) if known else name)
    is_entry = known is not None and _check_entry(name, symbol, platform, api)
    return {"execute": find(symbol), **record}, known if is_entry else None


def _functions_at(name: str, library: object, api: str) -> dict[str, int]:
    """Return the functions, by stage, of a capsule, an address or a ctypes function."""
    if isinstance(library, bool):
        raise TypeError(f"custom-call target {name!r}: library must not be a bool")
    address = ffi_handlers.address_of(library)
    if address is None:
        raise TypeError(
            f"custom-call target {name!r}: library must be a path, a ctypes.CDLL, a ctypes "
            "function, a PyCapsule or an address"
            + (", or a dictionary of them by stage" if api == "ffi" else "")
            + f", but is of type {type(library).__name__}"
        )
    what = "the address"
    if not isinstance(library, int):
        is_capsule = type(library).__name__ == "PyCapsule"
        what = f"the {'capsule' if is_capsule else 'function'}'s address"
    if api == "ffi":
        return ffi_handlers.handlers(name, address, what)
    return {"execute": libraries.code_address(name, address, what)}


def add(
    target: Target, register: Callable[[], None], library: object, schema: Schema | None
) -> None:
    """Register a target, and record its function's origin and its schema."""
    with _lock:
        register()
        target = _current(*target)
        _libraries.setdefault(target, library)
        if schema is not None:
            _schemas[target] = schema


def set_sharding_rule(name: str, rule: str | None) -> None:
    """Set the sharding rule for calls of this target that pass none."""
    _sharding_rules[name] = rule


def sharding_rule(target: str) -> str | None:
    """Return the rule with which the target was registered last; None if it has none."""
    return _sharding_rules.get(target)


def check_name(function: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"{function}: name must be a str, but is of type {type(name).__name__}; the order is "
            f"{function}(name, library)"
        )
    if not name:
        raise ValueError(f"{function}: name is empty")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    if value not in tuple(choices):  # it may be unhashable
        known = " and ".join(repr(choice) for choice in choices)
        hint = '; the CPU is "Host"' if value in ("CPU", "cpu", "host") else ""
        raise ValueError(f"register_custom_call: unknown {name} {value!r}; known are {known}{hint}")


def _check_entry(name: str, symbol: str, platform: str, api: str) -> bool:
    """Return whether `symbol` is a kernel's entry; raise ValueError if it is another one's."""
    expected = entry(name, platform, api)
    for (other_platform, other_api), suffix in ENTRIES.items():
        if symbol == name + suffix != expected:
            raise ValueError(
                f"custom-call target {name!r}: symbol {symbol!r} is the kernel's entry for "
                f"{other_platform!r} and api={other_api!r}; that for {platform!r} and "
                f"api={api!r} is {expected!r}, which is the default"
            )
    return symbol == expected


def register_cuda_custom_call(name: str, library: object) -> None:
    """Register the function `name` of `library` as the untyped CUDA target `name`.

    This is a shorthand for `register_custom_call`, and raises the same errors.
    """
    register_custom_call(name, library, platform="CUDA", api="untyped")


def registered_targets(platform: str | None = None) -> list[Target]:
    """Return the registered targets, sorted, without XLA's own.

    Args:
        platform: "CUDA" or "Host"; None for both.

    Raises:
        ValueError: an unknown platform.
    """
    return sorted(
        Target(name, each, api)
        for each in (PLATFORMS if platform is None else [platform])
        for api in APIS
        for name in _XLAC._xla_registered_custom_call_targets(each, api)
    )


def is_registered(name: str, platform: str, api: str) -> bool:
    """Return whether XLA has this target, which may be one of XLA's own."""
    return _is_text(name) and _XLAC._xla_has_custom_call_target(name, platform, api)


def _is_text(name: str) -> bool:
    """Return whether a value is a str that UTF-8 can encode, without lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
