"""Call the kernels of a shared library as XLA does, without torch_xla.

Use it for comparisons with libraries that need a different torch or Python than the wheel. The
shared library contains kernels that use torch_xla_ext/kernel.h, and without_torch_xla.cc:
//benchmarks:libpaged_kernels.so, for example.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

PYTHON = Path(__file__).resolve().parents[1] / "torch_xla_ext/python"


def _load_package() -> tuple[types.ModuleType, types.ModuleType]:
    """Import untyped_payload and schema without their package, which would import more."""
    if "xla_kernels" not in sys.modules:
        package = types.ModuleType("xla_kernels")
        package.__path__ = [str(PYTHON / "xla_kernels")]
        sys.modules["xla_kernels"] = package
    from xla_kernels.signature import schema, untyped_payload

    return untyped_payload, schema


class KernelLibrary:
    """The untyped entries of a library, for CUDA ("Name") and for the CPU ("NameHost")."""

    def __init__(self, path: str | Path) -> None:
        self._payload, self._schema = _load_package()
        self._library = ctypes.CDLL(str(Path(path).resolve()))

    def schema(self, target: str) -> object:
        """Return the target's xla_kernels.signature.schema.Schema.

        Raises:
            ValueError: the library has no such kernel.
        """
        try:
            function = getattr(self._library, target + "Schema")
        except AttributeError:
            raise ValueError(f"{self._library._name} has no kernel {target}") from None
        function.restype = ctypes.c_char_p
        return self._schema.Schema.parse(function().decode())

    def bind(
        self,
        target: str,
        arrays: Mapping[str, torch.Tensor | None],
        parameters: Mapping[str, float],
    ) -> Callable[[], None]:
        """Prepare a call.

        Args:
            target: the kernel's name.
            arrays: the operands and results by their names in the signature, contiguous and on one
                device, CPU or CUDA. An optional operand may be missing. An in-place result has the
                operand's name; "result NAME" gives it a separate buffer.
            parameters: the parameters by name. Unknown ones are ignored.

        Returns:
            A function that calls the kernel (on CUDA, on torch's current stream), and raises
            RuntimeError with the kernel's message if it fails.

        Raises:
            TypeError, ValueError: the arrays or parameters do not match the schema.
        """
        schema = self.schema(target)
        values = [arrays.get(operand.name) for operand in schema.operands]
        values += [arrays.get(f"result {r.name}", arrays.get(r.name)) for r in schema.results]
        present = [value for value in values if value is not None]
        for value in present:
            if not value.is_contiguous() or value.device != present[0].device:
                raise ValueError(f"{target}: an array is not contiguous, or is on another device")
        types_ = [None if v is None else self._schema.ArrayType.of(v) for v in values]
        known = {parameter.name for parameter in schema.parameters}
        payload = self._payload.pack(
            schema, types_, {name: v for name, v in parameters.items() if name in known}
        )

        def pointers(tensors: list[torch.Tensor]) -> ctypes.Array:
            return (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])

        status = ctypes.create_string_buffer(512)
        is_cuda = present[0].is_cuda
        entry = getattr(self._library, target + ("" if is_cuda else "Host"))
        entry.restype = None
        entry.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        ]
        if is_cuda:
            first, second = None, pointers(present)
        else:
            count = len(present) - len(schema.results)
            first, second = pointers(present[count:]), pointers(present[:count])
        size = len(payload)

        def call(keep: object = present) -> None:
            where = torch.cuda.current_stream().cuda_stream if is_cuda else first
            entry(where, second, payload, size, status)
            if status.value:
                text, status.value = status.value.decode(), b""
                raise RuntimeError(text)

        return call


def microseconds(calls: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Return the time per call in each of `repeats` runs of a CUDA graph with all calls."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return times
