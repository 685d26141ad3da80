"""Call the kernels of PyTorch operators with XLA tensors and with PyTorch's own tensors."""

from xla_kernels.operator.batching import VmapInfo
from xla_kernels.operator.define import define_in_place_operator, define_operator

__all__ = ["VmapInfo", "define_in_place_operator", "define_operator"]
