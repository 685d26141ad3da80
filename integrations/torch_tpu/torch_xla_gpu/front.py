"""Load and call the library in front of XLA's plugin (csrc/front.h, csrc/launchers.cc)."""

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from xla_kernels.launch import Launch

PATH = Path(__file__).with_name("libtorch_xla_gpu.so")

# PJRT_NamedValue_Type.
_STRING, _INT64, _INT64_LIST, _FLOAT, _BOOL = range(5)


class _Option(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("string", ctypes.c_char_p),
        ("integers", ctypes.POINTER(ctypes.c_int64)),
        ("size", ctypes.c_size_t),
        ("real", ctypes.c_float),
        ("boolean", ctypes.c_bool),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.c_char_p),
        ("module_size", ctypes.c_size_t),
        *((name, ctypes.c_char_p) for name in ("digest", "kernel", "parameters")),
        *((name, ctypes.c_uint * 3) for name in ("grid", "block", "cluster")),
        ("shared", ctypes.c_int32),
        *((name, ctypes.c_bool) for name in ("cooperative", "dependent", "spread")),
    )


class PluginError(RuntimeError):
    """The plugin cannot be used, or a call to it failed; the message has reason and remedy."""


@functools.cache
def _library() -> ctypes.CDLL:
    if not PATH.is_file():
        raise PluginError(
            f"{PATH} is missing, which is a part of the package's wheel: build it with "
            "`./bazelw build //integrations/torch_tpu:wheel` and install bazel-bin/"
            "integrations/torch_tpu/wheel/*.whl"
        )
    library = ctypes.CDLL(str(PATH))
    for function in (
        library.TorchXlaGpuLoad,
        library.TorchXlaGpuCreateClient,
        library.TorchXlaGpuRegisterHandler,
        library.TorchXlaGpuLaunch,
        library.TorchXlaGpuLoadTvmFfi,
        library.TorchXlaGpuTvmFfiFunction,
        library.TorchXlaGpuTvmFfiHandler,
    ):
        function.restype = ctypes.c_char_p
    return library


def _raise_if(error: bytes | None, kind: type[Exception] = PluginError) -> None:
    if error is not None:
        raise kind(error.decode(errors="replace"))


def load(path: str) -> None:
    """Load a plugin; raise PluginError if torch-tpu cannot use it."""
    _raise_if(_library().TorchXlaGpuLoad(path.encode()))


def create_client(options: Mapping[str, object]) -> None:
    """Create the client for torch-tpu; raise PluginError with the plugin's message."""
    array = (_Option * len(options))(*[_option(name, value) for name, value in options.items()])
    _raise_if(_library().TorchXlaGpuCreateClient(array, ctypes.c_size_t(len(array))))


def _option(name: str, value: object) -> _Option:
    option = _Option(name=name.encode())
    if isinstance(value, bool):
        option.type, option.boolean = _BOOL, value
    elif isinstance(value, float):
        option.type, option.real = _FLOAT, value
    elif isinstance(value, str):
        option.type, option.string = _STRING, value.encode()
    elif isinstance(value, int):
        option.type, option.integers = _INT64, (ctypes.c_int64 * 1)(value)
    elif isinstance(value, Sequence):
        option.type, option.size = _INT64_LIST, len(value)
        option.integers = (ctypes.c_int64 * len(value))(*value)
    else:
        raise TypeError(
            f"client option {name}: values of type {type(value).__name__} are not supported"
        )
    return option


def register_handler(name: str, platform: str, address: int) -> None:
    """Register a handler of XLA's FFI under a new name; raise PluginError if that fails."""
    _raise_if(
        _library().TorchXlaGpuRegisterHandler(
            name.encode(), platform.encode(), ctypes.c_void_p(address)
        )
    )


def address_of(handler: str) -> int:
    """Return the address of a handler of XLA's FFI in the library."""
    return ctypes.cast(getattr(_library(), handler), ctypes.c_void_p).value


def launch_now(
    launch: Launch,
    parameters: Sequence[str],
    operands: Sequence[int],
    results: Sequence[int],
    stream: int,
) -> None:
    """Implement FrontEnd.launch_now."""

    def addresses(given: Sequence[int]) -> tuple[ctypes.Array, ctypes.c_size_t]:
        return (ctypes.c_uint64 * len(given))(*given), ctypes.c_size_t(len(given))

    described = _Launch(
        launch.module,
        len(launch.module),
        launch.digest.encode(),
        launch.kernel.encode(),
        " ".join(parameters).encode(),
        *((ctypes.c_uint * 3)(*three) for three in (launch.grid, launch.block, launch.cluster)),
        launch.shared,
        launch.cooperative,
        launch.dependent,
        launch.spread,
    )
    arrays = *addresses(operands), *addresses(results)
    error = _library().TorchXlaGpuLaunch(ctypes.byref(described), *arrays, ctypes.c_uint64(stream))
    _raise_if(error, RuntimeError)


def load_tvm_ffi(path: str) -> None:
    """Implement FrontEnd.load_tvm_ffi."""
    _raise_if(_library().TorchXlaGpuLoadTvmFfi(path.encode()), RuntimeError)


def tvm_ffi_function(library: str, symbol: str) -> int:
    """Implement FrontEnd.tvm_ffi_function."""
    function = ctypes.c_uint64()
    found = _library().TorchXlaGpuTvmFfiFunction
    _raise_if(found(library.encode(), symbol.encode(), ctypes.byref(function)), RuntimeError)
    return function.value


def tvm_ffi_handler(
    name: str, platform: str, function: int, words: Sequence[str], in_graphs: bool, schema: str
) -> int:
    """Return the address of a handler of XLA's FFI that calls a TVM-FFI function.

    Raises:
        ValueError: an unknown word.
    """
    handler = ctypes.c_uint64()
    error = _library().TorchXlaGpuTvmFfiHandler(
        name.encode(),
        ctypes.c_bool(platform == "Host"),
        ctypes.c_uint64(function),
        (ctypes.c_char_p * len(words))(*(word.encode() for word in words)),
        ctypes.c_size_t(len(words)),
        ctypes.c_bool(in_graphs),
        schema.encode(),
        ctypes.byref(handler),
    )
    _raise_if(error, ValueError)
    return handler.value


def api_version() -> tuple[int, int]:
    """Return the plugin's version of the PJRT API."""
    major, minor = ctypes.c_int32(), ctypes.c_int32()
    _library().TorchXlaGpuApiVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value
