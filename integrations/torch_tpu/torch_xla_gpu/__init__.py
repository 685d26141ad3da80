"""Run today's PyTorch on XLA:GPU, and on XLA:CPU for tests: ``import torch_xla_gpu``.

The import brings up torch-tpu's device, whose name is "tpu", with XLA's plugin for CUDA or the CPU.
Kernels that are made with torch_xla_ext/kernel.h become PyTorch operators on it, with
`register_kernel` and `define_operator`, as in torch_xla_ext.
"""

import torch_xla_gpu_versions

torch_xla_gpu_versions.check()

from torch_xla_gpu import device  # noqa: E402  # only with the versions that it is for

device.bring_up()

from torch_xla_gpu.front_end import TorchTpu  # noqa: E402
from torch_xla_gpu.kernels import Target, register_kernel, registered_targets  # noqa: E402
from xla_kernels import (  # noqa: E402
    CudaKernel,
    TritonKernel,
    VmapInfo,
    compile_triton_kernel,
    cuda_kernel,
    define_in_place_operator,
    define_operator,
    triton_call,
    tvm_ffi_call,
)
from xla_kernels import front_end as _front_end  # noqa: E402

_front_end.register(TorchTpu())

__all__ = [
    "CudaKernel",
    "Target",
    "TritonKernel",
    "VmapInfo",
    "compile_triton_kernel",
    "cuda_kernel",
    "define_in_place_operator",
    "define_operator",
    "device",
    "register_kernel",
    "registered_targets",
    "triton_call",
    "tvm_ffi_call",
]
