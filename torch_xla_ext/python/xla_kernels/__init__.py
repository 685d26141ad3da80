"""Kernels for XLA, declared with PyTorch alone: signatures, CUDA sources, operators.

A front end, which brings PyTorch and XLA together, makes the calls: torch_xla_ext, or torch_xla_gpu
(//integrations/torch_tpu). Each ships this package, and registers itself when it is imported
(`front_end`). This package imports the standard library, numpy, torch and itself, nothing else but
what a function needs that says so.
"""

import importlib

# The names of this package, by the modules that have them, which are imported at the first use.
_MODULES = {
    "ArrayType": "signature.schema",
    "Checked": "operator.checked",
    "CudaKernel": "cuda_source.kernel",
    "OperatorCall": "operator.checked",
    "Processes": "plugin.options",
    "Schema": "signature.schema",
    "Tensors": "operator.tensor_checks",
    "Traits": "traits",
    "Value": "operator.tensor_checks",
    "VmapInfo": "operator.batching",
    "client_create_options": "plugin.options",
    "cuda_kernel": "cuda_source.kernel",
    "define_in_place_operator": "operator.define",
    "define_operator": "operator.define",
    "overlap": "operator.tensor_checks",
    "register_reference": "references",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
