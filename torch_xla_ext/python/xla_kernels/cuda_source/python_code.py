"""Base for libraries that compile kernels from Python functions, for the arguments' types.

Each library has a subclass, which returns an argument's type, the module compiled for the types,
and the words of a launch for an argument.
"""

import abc
import dataclasses
import threading
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from xla_kernels.cuda_source import binary
from xla_kernels.cuda_source.cpp_types import Argument, Parameter
from xla_kernels.cuda_source.machine_code import For, Kernel, capability_of

Type = Any  # a library's type of an argument


@dataclasses.dataclass(frozen=True)
class PythonParameter(Parameter):
    """A parameter of a Python function, which accepts any argument."""

    takes_arrays = True
    takes_values = True
    is_written = True
    declares_writes = False

    def accepts(self, dtype: torch.dtype) -> bool:
        return True

    def check_dtype(self, where: str, dtype: torch.dtype) -> None:
        """Accept any dtype: the compiler checks it."""


class PythonCode(abc.ABC):
    """A Python function that is compiled at its first call with arguments of given types.

    Attributes:
        library: the library's name and version, for errors.
        names: the function's parameters.
    """

    def __init__(self, library: str, names: Sequence[str]) -> None:
        self.library = library
        self.names = tuple(names)
        self._lock = threading.Lock()
        self._kernels: dict[tuple[int, Hashable], Kernel] = {}

    def __str__(self) -> str:
        return f"a function of {self.library}, which is compiled for the arguments of each call"

    @abc.abstractmethod
    def types(self, arguments: Sequence[Argument]) -> Sequence[Type]:
        """Return the types to compile for; TypeError if the library has none for an argument."""

    def key(self, types: Sequence[Type]) -> Hashable:
        """Return a key of these types."""
        return tuple(types)

    @abc.abstractmethod
    def compile(self, types: Sequence[Type], capability: int) -> tuple[bytes, str]:
        """Return a module for GPUs of this compute capability, and the kernel's name in it."""

    @abc.abstractmethod
    def words(self, type_: Type, argument: Argument) -> list[str]:
        """Return an argument's words in the launch's description (xla_kernels.launch)."""

    def declared(self) -> tuple[Parameter, ...]:
        return tuple(PythonParameter("any", name) for name in self.names)

    def parameters(self, name: str, target: For) -> tuple[Parameter, ...]:
        return self.declared()

    def kernel(self, name: str, target: For, arguments: Sequence[Argument]) -> Kernel | None:
        if target is None:
            return None  # the library's compiler may want a GPU
        capability = capability_of(target) if isinstance(target, str) else target
        types = tuple(self.types(arguments))
        key = capability, self.key(types)
        with self._lock:
            if key not in self._kernels:
                module, function = self.compile(types, capability)
                sizes = binary.read(module).kernels[function]
                self._kernels[key] = _PythonKernel(
                    module, function, self.declared(), sizes, self, types
                )
            return self._kernels[key]


@dataclasses.dataclass(frozen=True)
class _PythonKernel(Kernel):
    code: PythonCode
    types: tuple[Type, ...]

    def words(self, where: str, arguments: Sequence[Argument]) -> list[str]:
        words = [
            word
            for type_, argument in zip(self.types, arguments, strict=True)
            for word in self.code.words(type_, argument)
        ]
        # An address is a letter and a number; a value is an x and two hexadecimal digits a byte.
        sizes = tuple(len(word) // 2 if word[0] == "x" else 8 for word in words)
        if self.sizes is not None and sizes != self.sizes:
            raise RuntimeError(
                f"{where}: {self.code.library} has compiled a kernel whose parameters have "
                f"{self.sizes} bytes, but this version of torch_xla_ext passes {sizes}"
            )
        return words
