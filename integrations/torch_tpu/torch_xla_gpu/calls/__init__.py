"""Custom calls in torch-tpu's programs."""

from torch_xla_gpu.calls.stablehlo import Prepared, call, copy, prepare

__all__ = ["Prepared", "call", "copy", "prepare"]
