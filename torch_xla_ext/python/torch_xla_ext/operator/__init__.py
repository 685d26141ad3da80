"""PyTorch operators that call kernels: ``torch_xla_ext.define_operator``."""

from torch_xla_ext.operator.define import VmapInfo, define_in_place_operator, define_operator

__all__ = ["VmapInfo", "define_in_place_operator", "define_operator"]
