"""Operators of modules that ``import torch_xla`` does not import: ``torch.ops.xla_gpu``, of
torch_xla_ext, and ``torch.ops.quantized_decomposed``, whose module upstream's import takes along.
"""

from __future__ import annotations

import importlib

import torch

_Namespace = torch._ops._OpNamespace


class _Operators(_Namespace):
    """A namespace, until an operator is asked for that only the module defines."""

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name)
        self._defined_by = module

    def __getattr__(self, name: str) -> torch._ops.OpOverloadPacket:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
        importlib.import_module(self._defined_by)
        self.__class__ = _Namespace
        return getattr(self, name)


# Each returns the namespace that a program has used already, if it has.


def xla_gpu(original: _Namespace | None) -> _Namespace:
    return _Operators("xla_gpu", "torch_xla_ext") if original is None else original


def quantized_decomposed(original: _Namespace | None) -> _Namespace:
    if original is not None:
        return original
    return _Operators("quantized_decomposed", "torch.ao.quantization.fx._decomposed")
