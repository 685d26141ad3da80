"""Capture steps (torch_xla_ext.capture), and run graphs of torch.compile, as XLA programs.

The names in __all__ are public.
"""

from torch_xla_ext.graph.step import CapturedStep
from torch_xla_ext.graph.watch import answers_as_compiling

__all__ = ["CapturedStep", "answers_as_compiling"]
