"""A PyTorch operator that runs Triton's interpreter: the kernels' reference on the CPU."""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from xla_kernels.replacement import temporarily_replaced
from xla_kernels.triton.kernel import replaced

_LIBRARY = torch.library.Library("xla_kernels_triton", "DEF")
_LIBRARY.define("interpret(Tensor[] operands, int call) -> Tensor[]")
_lock = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Interpretation:
    """A call of a kernel.

    Attributes:
        function: the function that @triton.jit decorates.
        grid: three numbers of blocks.
        values: the arguments by name, None for tensors, which are in `operands` or `outputs`.
        operands: the paths of the tensors that are operands, in their order.
        written: the operands that the kernel writes to, whose new values are the last results.
        outputs: the other results, with shapes and dtypes.
    """

    function: Callable[..., None]
    grid: tuple[int, int, int]
    values: Mapping[str, object]
    operands: Sequence[str]
    written: Sequence[str]
    outputs: Mapping[str, tuple[Sequence[int], torch.dtype]]

    def run(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        from triton.runtime.interpreter import InterpretedFunction

        tensors = {
            name: tensor.contiguous() for name, tensor in zip(self.operands, operands, strict=True)
        }
        tensors |= {name: tensors[name].clone() for name in self.written}
        tensors |= {name: torch.zeros(s, dtype=d) for name, (s, d) in self.outputs.items()}
        with _lock, _interpreting():
            InterpretedFunction(self.function)[self.grid](
                **{
                    name: replaced(value, lambda path, part: tensors.get(path, part), name)
                    for name, value in self.values.items()
                }
            )
        return [tensors[name] for name in (*self.outputs, *self.written)]

    def fake(self, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        by_name = dict(zip(self.operands, operands, strict=True))
        return [
            operands[0].new_empty(shape, dtype=dtype) for shape, dtype in self.outputs.values()
        ] + [torch.empty_like(by_name[name]) for name in self.written]


# The calls, indexed by the number that a program contains; equal calls have equal numbers.
_calls: list[Interpretation] = []
_numbers: dict[str, int] = {}


def number_of(key: str, call: Interpretation) -> int:
    """Return the number by which the operator finds a call; equal keys give equal numbers."""
    with _lock:
        if key not in _numbers:
            _calls.append(call)
            _numbers[key] = len(_calls) - 1
        return _numbers[key]


def _run(operands: Sequence[torch.Tensor], call: int) -> list[torch.Tensor]:
    return _calls[call].run(operands)


def _fake(operands: Sequence[torch.Tensor], call: int) -> list[torch.Tensor]:
    return _calls[call].fake(operands)


_LIBRARY.impl("interpret", _run, "CPU")
torch.library.register_fake("xla_kernels_triton::interpret", _fake, lib=_LIBRARY)


@contextlib.contextmanager
def _interpreting() -> Iterator[None]:
    """In a block, interpret kernels; then undo the changes to triton.language.

    The changes would break compiling. In a process without TRITON_INTERPRET=1, the functions that a
    kernel calls, including Triton's own, are objects for the compiler. In the block they are
    interpreted, too.
    """
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    names = [name for name in sys.modules if name.split(".")[:2] == ["triton", "language"]]
    modules = [sys.modules[name] for name in names]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.startswith("triton.language")
    }
    saved = [(holder, dict(vars(holder))) for holder in [*modules, *classes, JITFunction]]

    def call(function: JITFunction, *args: object, **kwargs: object) -> object:
        return InterpretedFunction(function.fn)(*args, **kwargs)

    try:
        with temporarily_replaced(JITFunction, "__call__", call):
            yield
    finally:
        for holder, attributes in saved:
            for name, value in list(vars(holder).items()):
                if name not in attributes:
                    # Keep the interpreter's own names, because rewritten functions use them.
                    if name not in vars(interpreter):
                        delattr(holder, name)
                elif attributes[name] is not value:
                    setattr(holder, name, attributes[name])
