"""Run when Python starts (torch_xla_gpu_startup.pth), so that `import torch` skips torch-tpu.

PyTorch would import torch-tpu when it is imported itself. That prints a line, and ends the process
if no library is named that could drive a TPU. `import torch_xla_gpu` imports torch-tpu.
"""

import os
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault(
    "TPU_LIBRARY_PATH", str(Path(__file__).parent / "torch_xla_gpu" / "libtorch_xla_gpu.so")
)
