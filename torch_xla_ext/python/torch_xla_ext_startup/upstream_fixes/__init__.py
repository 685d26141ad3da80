"""Replace functions of torch_xla, PyTorch and other libraries; table.py lists them.

For debugging, `revert(name)` restores a library's own functions, and the environment variable
TORCH_XLA_EXT_WITHOUT_FIX=name[,name] leaves fixes out from the start.
"""

from xla_kernels.replacement import Fix, active, apply, install, revert, temporarily_replaced

__all__ = ["Fix", "active", "apply", "install", "revert", "temporarily_replaced"]
