"""PyTorch operators that call kernels: their calls with XLA's tensors and PyTorch's own."""

from xla_kernels.operator.batching import VmapInfo
from xla_kernels.operator.define import define_in_place_operator, define_operator

__all__ = ["VmapInfo", "define_in_place_operator", "define_operator"]
