"""Custom kernels for PyTorch/XLA, called by their own names as XLA custom calls.

The package is part of the custom torch_xla wheel, whose ``torch_xla._XLAC`` it needs::

    import torch, torch_xla
    from torch_xla_ext import ops

    device = torch_xla.device()
    total = ops.simple_add(torch.ones(3, device=device), torch.ones(3, device=device))
"""

from pathlib import Path

import torch_xla

if not hasattr(torch_xla._XLAC, "_xla_registered_custom_call_targets"):
    raise ImportError(
        f"torch_xla_ext needs the torch_xla of its own wheel, but {torch_xla.__file__} is another "
        f"torch_xla, version {torch_xla.__version__}; reinstall it: "
        "pip install --force-reinstall --no-deps torch_xla-2.8.1+gpucc…whl"
    )

from torch_xla_ext._capture.errors import CaptureError
from torch_xla_ext._capture.step import capture
from torch_xla_ext.calls import custom_call
from torch_xla_ext.registration import (
    Target,
    register_cuda_custom_call,
    register_custom_call,
    register_kernel,
    registered_targets,
)
from torch_xla_ext.schema import ArrayType

from torch_xla_ext import debug, ops, upstream  # isort: skip

__all__ = [
    "ArrayType",
    "CaptureError",
    "Target",
    "capture",
    "custom_call",
    "debug",
    "include_dir",
    "ops",
    "register_cuda_custom_call",
    "register_custom_call",
    "register_kernel",
    "registered_targets",
]
__version__ = torch_xla.__version__

upstream.install()


def include_dir() -> str:
    """The folder of headers to compile kernels with: ``g++ -I$(…)``.

    It has torch_xla_ext/kernel.h and the headers of XLA that it needs.
    """
    return str(Path(__file__).parent / "include")
