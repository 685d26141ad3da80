"""Graphs of ``torch.compile(backend="openxla")`` on PyTorch's own CUDA and CPU tensors.

If the tensors are in the memory of torch_xla's device, a program reads and writes them in place,
and its results are PyTorch tensors over XLA's memory (csrc/graph/shared_memory.h). On CUDA, events
order the program after PyTorch's current stream and vice versa, without a wait on the host.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Sequence

import torch
import torch_xla
from torch.utils import _pytree as pytree

_XLAC = torch_xla._XLAC
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class SharedMemory:
    """The memory of a PyTorch device that is also torch_xla's current device."""

    device: torch.device

    @staticmethod
    def of(graph: torch.fx.GraphModule, arguments: Iterable[object]) -> SharedMemory | None:
        """Return the memory that holds the arguments, or None if XLA cannot use it in place.

        CPU tensors among CUDA tensors, such as scalars, are copied.
        """
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        devices = {tensor.device for tensor in tensors} or _devices_of(graph)
        devices = {_with_index(device) for device in devices}
        device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
        is_one = bool(devices) and devices <= {device, torch.device("cpu")}
        if not is_one or not all(map(_has_view, tensors)):
            return None
        is_functional = _XLAC._xla_capture_is_supported(torch.empty(0, device=torch_xla.device()))
        return SharedMemory(device) if is_functional and _XLAC._xla_shares_memory(device) else None

    def views(self, arguments: Sequence[object]) -> list[object]:
        """Return the arguments, with each PyTorch tensor replaced by an XLA tensor on its memory.

        A tensor on another device, or one that is not row-major, is copied first.
        """
        own = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        own = [t if self._is_usable(t) else self.copy(t) for t in own]
        views = iter(_XLAC._xla_views(own))
        return [next(views) if isinstance(a, torch.Tensor) else a for a in arguments]

    def _is_usable(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self.device and _XLAC._xla_is_row_major(tensor)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy that XLA can use in place."""
        with torch.no_grad():
            return (
                tensor.to(
                    self.device, copy=True, non_blocking=True, memory_format=torch.contiguous_format
                )
                .resolve_conj()
                .resolve_neg()
            )

    def move(self, graph: torch.fx.GraphModule) -> None:
        """Move the graph's constants, and the tensors that it makes on this device, to XLA."""
        xla = torch_xla.device()

        def moved(value: object) -> object:
            return xla if isinstance(value, torch.device) and self._is(value) else value

        for node in graph.graph.nodes:
            if node.op == "call_function":
                node.args = pytree.tree_map(moved, node.args)
                node.kwargs = pytree.tree_map(moved, node.kwargs)
        for name, buffer in list(graph.named_buffers()):
            if self._is(buffer.device):
                owner, _, last = name.rpartition(".")
                graph.get_submodule(owner)._buffers[last] = buffer.to(xla)
        graph.recompile()

    def _is(self, device: torch.device) -> bool:
        return device.type == self.device.type

    def program(self, program: object) -> _Program:
        """Wrap a program of csrc/graph, to run on tensors in this memory."""
        if self.device.type == "cuda" and not _XLAC._xla_is_compute_stream_known():
            with _lock:
                _find_compute_stream()
        return _Program(self.device, _XLAC._XlaProgramOnSharedMemory(program, self.device))


@dataclasses.dataclass(frozen=True)
class _Program:
    device: torch.device
    program: object

    def arguments_to_copy(self, tensors: list[torch.Tensor]) -> list[int]:
        return self.program.arguments_to_copy(tensors)

    def run_unless_copied(self, tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
        return None if self.arguments_to_copy(tensors) else self.run(tensors)

    def run(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        stream = 0
        if self.device.type == "cuda":
            stream = torch._C._cuda_getCurrentRawStream(self.device.index)
        return self.program.run(tensors, stream)


def _has_view(tensor: torch.Tensor) -> bool:
    """Return whether torch_xla can view the tensor through DLPack, which has no 8-bit floats."""
    dtype = tensor.dtype
    is_float8 = dtype.is_floating_point and dtype.itemsize == 1
    return tensor.layout == torch.strided and not is_float8


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _devices_of(graph: torch.fx.GraphModule) -> set[torch.device]:
    """Return the devices on which a graph without tensor arguments makes tensors."""
    leaves = pytree.tree_leaves([(node.args, node.kwargs) for node in graph.graph.nodes])
    return {leaf for leaf in leaves if isinstance(leaf, torch.device)}


def _find_compute_stream() -> None:
    """Run the target of csrc/graph/cuda_streams.h, with an operand and a result that it ignores."""
    operand = torch.zeros(1, device=torch_xla.device())
    results = _XLAC._xla_custom_call(
        [operand],
        _XLAC._xla_compute_stream_target,
        [[1]],
        [torch.float32],
        True,
        "{}",
        4,  # FFI
        {},
    )
    _XLAC._xla_sync_multi(results, [], True, True)
    if not _XLAC._xla_is_compute_stream_known():
        raise RuntimeError(f"{_XLAC._xla_compute_stream_target} did not run")
