"""Make custom calls in torch-tpu's programs."""

from torch_xla_gpu.custom_call.stablehlo import Prepared, call, copy, prepare

__all__ = ["Prepared", "call", "copy", "prepare"]
