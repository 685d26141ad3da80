"""Replace torch-tpu's functions that work on TPUs only, and Triton's launches.

FIXES lists the replaced functions. The other modules register kernels with PyTorch's dispatcher.
"""

from xla_kernels.replacement import Fix
from xla_kernels.triton.fixes import fixes

_TEST = "tests/integrations/torch_tpu/device_test.py"

FIXES = (
    Fix(
        "device_count",
        versions="torch-tpu 0.2.0",
        reason="torch-tpu looks for TPUs on the PCI bus",
        test=_TEST,
        replaces={
            "torch_tpu._internal.utils.hardware:get_tpu_device_count": (
                "torch_xla_gpu.device:device_count"
            )
        },
    ),
    Fix(
        "backward_programs",
        versions="torch-tpu 0.2.0",
        reason="gradients of views are wrong in programs of torch.compile",
        test=_TEST,
        replaces={
            "torch_tpu._internal.compile._backend:TpuBackend._compile_graph_module": (
                "torch_xla_gpu.upstream_fixes.compiled:compile_graph_module"
            )
        },
    ),
    *fixes("torch_xla_gpu"),
)
