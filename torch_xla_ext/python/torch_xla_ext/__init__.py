"""Custom kernels for PyTorch/XLA, called by their own names as XLA custom calls.

The package is part of the custom torch_xla wheel, whose ``torch_xla._XLAC`` it needs::

    import torch, torch_xla
    from torch_xla_ext import ops

    device = torch_xla.device()
    total = ops.simple_add(torch.ones(3, device=device), torch.ones(3, device=device))
"""

import importlib
from pathlib import Path

import torch_xla
from torch_xla_ext_startup import install

if not hasattr(torch_xla._XLAC, "_xla_registered_custom_call_targets"):
    raise ImportError(
        f"torch_xla_ext needs the torch_xla of its own wheel, but {torch_xla.__file__} is another "
        f"torch_xla, version {torch_xla.__version__}; reinstall it: "
        "pip install --force-reinstall --no-deps torch_xla-2.8.1+gpucc…whl"
    )

from torch_xla_ext.custom_call import custom_call
from torch_xla_ext.front_end import TorchXla
from torch_xla_ext.graph.errors import CaptureError
from torch_xla_ext.graph.parallel_compilation import parallel_compilation
from torch_xla_ext.graph.step import capture
from torch_xla_ext.registry.ffi_handlers import register_ffi_type
from torch_xla_ext.registry.kernels import register_kernel
from torch_xla_ext.registry.registration import (
    Target,
    register_cuda_custom_call,
    register_custom_call,
    registered_targets,
)
from torch_xla_ext.tools.profiling import profile
from torch_xla_ext.xla_options import compiler_options
from xla_kernels.front_end import register as _register
from xla_kernels.signature.schema import ArrayType
from xla_kernels.tvm_ffi import tvm_ffi_call

_register(TorchXla())

from torch_xla_ext import debug, ops  # noqa: E402  # the operators need a front end
from xla_kernels.operator.define import define_in_place_operator, define_operator  # noqa: E402

__all__ = [
    "ArrayType",
    "CaptureError",
    "CudaKernel",
    "Target",
    "TritonKernel",
    "capture",
    "compile_triton_kernel",
    "compiler_options",
    "cuda_kernel",
    "custom_call",
    "debug",
    "define_in_place_operator",
    "define_operator",
    "include_dir",
    "load_kernels",
    "ops",
    "parallel_compilation",
    "profile",
    "register_cuda_custom_call",
    "register_custom_call",
    "register_ffi_type",
    "register_kernel",
    "register_torch_operator",
    "registered_targets",
    "run_torch_operator",
    "triton_call",
    "tvm_ffi_call",
]
__version__ = torch_xla.__version__

# Names that are imported when they are first used, with their modules.
_LAZY = {
    "CudaKernel": "xla_kernels.cuda_source.kernel",
    "TritonKernel": "xla_kernels.triton.kernel",
    "compile_triton_kernel": "xla_kernels.triton.triton_call",
    "cuda_kernel": "xla_kernels.cuda_source.kernel",
    "load_kernels": "torch_xla_ext.launchers.packages.load",
    "register_torch_operator": "torch_xla_ext.launchers.torch_operator.register",
    "run_torch_operator": "torch_xla_ext.launchers.torch_operator.register",
    "triton_call": "xla_kernels.triton.triton_call",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


install.install()  # where torch_xla does not load plugins


def include_dir() -> str:
    """Return the folder of the headers for compiling kernels: ``g++ -I$(…)``.

    It contains torch_xla_ext/kernel.h and the XLA headers that kernel.h includes.
    """
    return str(Path(__file__).parent / "include")
