"""Define operators on first use, if ``import torch_xla`` does not import their modules.

These are ``torch.ops.xla_gpu`` of torch_xla_ext, and ``torch.ops.quantized_decomposed``, whose
module upstream imports at `import torch_xla`.
"""

from collections.abc import Callable

import torch

_Namespace = torch._ops._OpNamespace


class _Operators(_Namespace):
    """A namespace before the first use of an operator that the unimported module defines."""

    def __init__(self, name: str, define: Callable[[], None]) -> None:
        super().__init__(name)
        self._define = define

    def __getattr__(self, name: str) -> torch._ops.OpOverloadPacket:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
        self._define()
        self.__class__ = _Namespace
        return getattr(self, name)


def _define_ours() -> None:
    import torch_xla_ext  # noqa: F401


def _define_quantized() -> None:
    import torch.ao.quantization.fx._decomposed  # noqa: F401


# These functions return the original if a program has already used the namespace.


def xla_gpu(original: _Namespace | None) -> _Namespace:
    return _Operators("xla_gpu", _define_ours) if original is None else original


def quantized_decomposed(original: _Namespace | None) -> _Namespace:
    if original is not None:
        return original
    return _Operators("quantized_decomposed", _define_quantized)
