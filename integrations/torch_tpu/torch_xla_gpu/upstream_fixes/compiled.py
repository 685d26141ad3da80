"""Make the operands of torch.compile's backward programs dense and row-major.

A forward program returns the tensors that its backward program reads, each in a dense buffer. But
torch-tpu compiles the backward program for the tensors' former strides. With a view as argument,
`tokens[:, :-1]`, the buffer is then too small ("E0102: RuntimeProgramInputMismatch"); with a
transposed view it has the right size, and the gradients were wrong. Here such operands are
row-major, both for the compiler and at run time.
"""

from collections.abc import Callable, Sequence

import torch
from torch_tpu._internal.compile.torch_tpu_compiled_executable import CompiledArtifact


class _RowMajor(CompiledArtifact):
    """A program whose operands are made row-major."""

    def __init__(self, program: CompiledArtifact) -> None:
        super().__init__()
        self._program = program

    def __call__(self, *args: object) -> object:
        if len(args) == 1 and isinstance(args[0], list):
            # In the same list: the program empties it, which frees tensors that nothing else holds.
            args[0][:] = [_row_major(each) for each in args[0]]
            return self._program(args[0])
        return self._program(*[_row_major(each) for each in args])

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return _RowMajor, (self._program,)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or name == "_program":
            raise AttributeError(name)
        return getattr(self._program, name)


def _row_major(value: object) -> object:
    """Return a tensor as a row-major one in its own buffer, and anything else unchanged."""
    if not isinstance(value, torch.Tensor) or (
        value.is_contiguous() and value.untyped_storage().nbytes() == value.numel() * value.itemsize
    ):
        return value
    return value.clone(memory_format=torch.contiguous_format)


def compile_graph_module(original: Callable[..., object]) -> Callable[..., object]:
    """Replace TpuBackend._compile_graph_module."""

    def compile_graph_module(
        self: object,
        compiler_instance: object,
        is_fwd: bool,
        custom_module_name: str | None,
        debug: object,
        compiled_artifacts: list[CompiledArtifact],
        graph_module: torch.fx.GraphModule,
        example_inputs: Sequence[object],
    ) -> Callable[..., object]:
        others = (compiler_instance, is_fwd, custom_module_name, debug, compiled_artifacts)
        if is_fwd:
            return original(self, *others, graph_module, example_inputs)
        inputs = [_row_major(each) for each in example_inputs]
        return _RowMajor(original(self, *others, graph_module, inputs))

    return compile_graph_module
