"""The operators of the kernels in the wheel. Importing them registers ``torch.ops.xla_gpu``.

Each module is the ``op.py`` of a kernel's folder: torch_xla_gpu.ops.<op> is kernels/<op>/op.py in
the source. The names in its ``__all__`` are available here, too.
"""

import importlib
import pkgutil
from pathlib import Path

from torch_xla_gpu import kernels

kernels.register_all(Path(__file__).parents[1] / "libkernels.so")

__all__ = []
for _info in pkgutil.iter_modules(__path__):
    if not _info.name.startswith("_"):
        _module = importlib.import_module(f"{__name__}.{_info.name}")
        globals().update((name, getattr(_module, name)) for name in _module.__all__)
        __all__ += _module.__all__
