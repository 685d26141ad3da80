"""Declare kernels for XLA: signatures, CUDA sources and operators. Needs only PyTorch.

A front end, which connects PyTorch and XLA, makes the calls: torch_xla_ext, or torch_xla_gpu
(//integrations/torch_tpu). Each front end ships this package, and registers itself at import
(`front_end`). This package imports only the standard library, numpy and torch. A function that
needs another library imports it when it is called.
"""

import importlib

# The public names by their modules, which are imported at the first use.
_MODULES = {
    "ArrayType": "signature.schema",
    "Checked": "operator.checked",
    "CudaKernel": "cuda_source.kernel",
    "OperatorCall": "operator.checked",
    "Processes": "plugin.options",
    "Schema": "signature.schema",
    "Tensors": "operator.tensor_checks",
    "Traits": "traits",
    "TritonKernel": "triton.kernel",
    "Value": "operator.tensor_checks",
    "VmapInfo": "operator.batching",
    "client_create_options": "plugin.options",
    "compile_triton_kernel": "triton.triton_call",
    "cuda_kernel": "cuda_source.kernel",
    "define_in_place_operator": "operator.define",
    "define_operator": "operator.define",
    "overlap": "operator.tensor_checks",
    "register_reference": "references",
    "triton_call": "triton.triton_call",
    "tvm_ffi_call": "tvm_ffi",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
