"""Calls kernels without XLA: their untyped entries, from a library built with nvcc alone.

What runs here needs a GPU, torch with CUDA and the library, no torch_xla: kernels can be tested and
timed with any torch. torch_xla_ext's packer of descriptors is loaded without the package around it.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import torch


def _load_packer() -> types.ModuleType:
    package = Path(__file__).parents[2] / "torch_xla_ext"
    if "torch_xla_ext" not in sys.modules:
        module = types.ModuleType("torch_xla_ext")
        module.__path__ = [str(package)]
        sys.modules["torch_xla_ext"] = module
    from torch_xla_ext import descriptor

    return descriptor


class KernelError(RuntimeError):
    """A launch function refused a call."""


class Library:
    """A library of kernels and of tests/gpu/direct_status.cc."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._packer = _load_packer()
        self._schemas: dict[str, object] = {}
        self._library.LastError.restype = ctypes.c_char_p

    def _schema(self, target: str) -> object:
        if target not in self._schemas:
            function = getattr(self._library, f"{target}Schema")
            function.restype = ctypes.c_char_p
            self._schemas[target] = self._packer.Schema.parse(function().decode())
        return self._schemas[target]

    def prepare(
        self,
        target: str,
        operands: Sequence[torch.Tensor | None],
        results: Sequence[torch.Tensor],
        **parameters: float,
    ) -> types.FunctionType:
        """Checks and packs a call.

        Args:
            target: the kernel's name.
            operands: CUDA tensors, contiguous; None for one that is left out.
            results: the tensors that the kernel writes.
            parameters: the kernel's own.

        Returns:
            A function that enqueues the call on torch's current stream, and raises KernelError.
        """
        from torch_xla_ext.schema import ArrayType

        arrays = [*operands, *results]
        types_ = [None if array is None else ArrayType.of(array) for array in arrays]
        payload = self._packer.pack(self._schema(target), types_, parameters)
        pointers = [array.data_ptr() for array in arrays if array is not None]
        assert all(array.is_contiguous() for array in arrays if array is not None)
        buffers = (ctypes.c_void_p * len(pointers))(*pointers)
        function = getattr(self._library, target)
        function.restype = None

        def call() -> None:
            self._library.ClearError()
            stream = torch.cuda.current_stream().cuda_stream
            function(ctypes.c_void_p(stream), buffers, payload, ctypes.c_size_t(len(payload)), None)
            error = self._library.LastError().decode()
            if error:
                raise KernelError(error)

        call.keep = arrays  # type: ignore[attr-defined]
        return call
