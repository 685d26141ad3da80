"""Captured and compiled programs; torch_xla_ext.capture is here.

The names below are public.
"""

from torch_xla_ext.graph.step import CapturedStep
from torch_xla_ext.graph.watch import answers_as_compiling

__all__ = ["CapturedStep", "answers_as_compiling"]
