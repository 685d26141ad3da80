"""The operators of the wheel, one module each. Importing them registers ``torch.ops.xla_gpu``."""

from torch_xla_ext.ops.simple_add import simple_add

__all__ = ["simple_add"]
