"""Programs of torch.compile: operands of a backward program that are parts of other tensors.

A forward program returns what its backward program reads, and torch-tpu gives each of these tensors
a buffer of its own; but it compiles the backward program for a view's strides, and for the buffer
that they reach over. With a view as argument (`tokens[:, :-1]`) the program then gets a buffer that
is too small: "E0102: RuntimeProgramInputMismatch". Here such operands are contiguous, for the
compiler and when the program runs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch_tpu._internal.compile import _backend
from torch_tpu._internal.compile.torch_tpu_compiled_executable import CompiledArtifact

_compile = _backend.TpuBackend._compile_graph_module


class _Contiguous(CompiledArtifact):
    """A program some of whose operands are made contiguous."""

    def __init__(self, program: CompiledArtifact, positions: Sequence[int]) -> None:
        super().__init__()
        self._program = program
        self._positions = tuple(positions)

    def __call__(self, *args: Any) -> Any:
        boxed = len(args) == 1 and isinstance(args[0], (list, tuple))
        operands = list(args[0] if boxed else args)
        for i in self._positions:
            operands[i] = operands[i].contiguous()
        return self._program(operands) if boxed else self._program(*operands)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _Contiguous, (self._program, self._positions)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_program":
            raise AttributeError(name)
        return getattr(self._program, name)


def _is_part(tensor: object) -> bool:
    """Whether a tensor is less than its storage, or its elements share some of it."""
    if not isinstance(tensor, torch.Tensor):
        return False
    return not is_non_overlapping_and_dense_or_false(tensor) or tensor.storage_offset() != 0


def _compile_graph_module(
    self: _backend.TpuBackend,
    compiler_instance: object,
    is_fwd: bool,
    custom_module_name: str | None,
    debug: object,
    compiled_artifacts: list[CompiledArtifact],
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[object],
) -> Callable[..., Any]:
    others = (compiler_instance, is_fwd, custom_module_name, debug, compiled_artifacts)
    parts = [] if is_fwd else [i for i, each in enumerate(example_inputs) if _is_part(each)]
    if not parts:
        return _compile(self, *others, graph_module, example_inputs)
    inputs = [
        each.contiguous() if i in parts and not each.is_contiguous() else
        each.clone(memory_format=torch.contiguous_format) if i in parts else each
        for i, each in enumerate(example_inputs)
    ]
    return _Contiguous(_compile(self, *others, graph_module, inputs), parts)


def install() -> None:
    """Puts this in the place of torch-tpu's method."""
    _backend.TpuBackend._compile_graph_module = _compile_graph_module
