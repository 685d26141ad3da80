"""Run when Python starts (torch_xla_gpu_startup.pth), so that `import torch` skips torch-tpu.

PyTorch imports torch-tpu when it is imported. torch-tpu prints a line, and aborts the process if no
library for TPUs is named. `import torch_xla_gpu` imports torch-tpu later.
"""

import os
from pathlib import Path

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault(
    "TPU_LIBRARY_PATH", str(Path(__file__).parent / "torch_xla_gpu" / "libtorch_xla_gpu.so")
)
