"""Register TransformerEngine-JAX's XLA FFI handlers, without JAX."""

import contextlib
import ctypes
import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from torch_xla_ext.registry import registration

_LIBRARY = "wheel_lib/libtransformer_engine.so"


def load() -> ModuleType:
    """Register the handlers, and return transformer_engine_jax.

    Raises:
        ImportError: a package is missing, or its library cannot be loaded.
    """
    package = find_spec("transformer_engine")
    if package is None or find_spec("transformer_engine_jax") is None:
        raise ImportError(
            "load_kernels: TransformerEngine's handlers are in transformer_engine_jax, which is "
            "not installed; pip install --no-build-isolation 'transformer-engine[jax]'"
        )
    # Loaded first, as its package does: the library uses functions of NVRTC without linking it.
    with contextlib.suppress(OSError):
        ctypes.CDLL("libnvrtc.so.13", ctypes.RTLD_GLOBAL)
    library = Path(package.submodule_search_locations[0]) / _LIBRARY
    # A release may refer to functions of a newer cuBLAS, which ctypes.CDLL would resolve at once.
    loader = ctypes.CDLL(None)
    dlopen, dlerror = loader.dlopen, loader.dlerror
    dlopen.restype, dlerror.restype = ctypes.c_void_p, ctypes.c_char_p
    if not dlopen(os.fsencode(library), os.RTLD_LAZY | os.RTLD_GLOBAL):
        raise ImportError(f"load_kernels: {(dlerror() or b'').decode()}")
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_LAZY)
    try:
        module = importlib.import_module("transformer_engine_jax")
    finally:
        sys.setdlopenflags(flags)
    for name, handlers in module.registrations().items():
        registration.register_custom_call(
            name, handlers, api="ffi", platform=registration.device_platform()
        )
    return module
