"""``torch.ops.xla_gpu`` in programs that do not import torch_xla_ext."""

from __future__ import annotations

import torch


class _Operators(torch._ops._OpNamespace):
    """``torch.ops.xla_gpu``, until an operator is asked for that only the package defines."""

    def __getattr__(self, name: str) -> torch._ops.OpOverloadPacket:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
        import torch_xla_ext  # noqa: F401

        self.__class__ = torch._ops._OpNamespace
        return getattr(self, name)


def xla_gpu(original: torch._ops._OpNamespace | None) -> torch._ops._OpNamespace:
    """The namespace, unless a program has used it already."""
    return _Operators("xla_gpu") if original is None else original
