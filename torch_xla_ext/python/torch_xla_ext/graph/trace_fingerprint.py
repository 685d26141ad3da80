"""Compare a later trace of a step with an earlier one, by fingerprints.

Guards compare Python state by name, and no list of names is complete. A fingerprint is: it covers
the program with its constants, the tensors that it reads and writes, and its results, which are all
effects of the step's Python code on tensors.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import weakref
from itertools import zip_longest
from typing import Any

import torch
import torch_xla

from torch_xla_ext.graph.guards import is_library, is_plain, same_plain
from torch_xla_ext.graph.results import Reference, Result, difference

_XLAC = torch_xla._XLAC
_MAX_ARGUMENTS = 64  # recorded for each operation


def code_location() -> str:
    """Return the file and line of the user code that is running."""
    frame = sys._getframe(1)
    while frame is not None and is_library(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    if frame is None:  # as in a thread of autograd, which runs only torch's code
        return "the backward pass"
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"  # noqa: PTH119


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return value if is_plain(value) else type(value).__name__


@dataclasses.dataclass
class Operation:
    """One call of torch by the step."""

    name: str
    arguments: list[Any]
    location: str

    @classmethod
    def of(cls, name: str, arguments: list[Any]) -> Operation:
        return cls(
            name, [_described(value) for value in arguments[:_MAX_ARGUMENTS]], code_location()
        )

    def is_same(self, other: Operation) -> bool:
        return (
            self.name == other.name
            and len(self.arguments) == len(other.arguments)
            and all(map(same_plain, self.arguments, other.arguments))
        )

    def __str__(self) -> str:
        values = [
            value if isinstance(value, str) else repr(value).removeprefix("torch.")
            for value in self.arguments[:8]
        ]
        values += ["…"] * (len(self.arguments) > len(values))
        return f"{self.name}({', '.join(values)})"


@dataclasses.dataclass
class TraceFingerprint:
    """The fingerprint of one trace.

    Attributes:
        program: the hash of the program's operations.
        parameters: the kind of each parameter's source, with an index or a tensor.
        names: the parameters' names.
        constants: tensors that the step moved to the device, with their lines of code.
        operations: the calls of torch that the step made.
        text: the program's operations, including those of the backward pass.
        as_compiling: whether torch.compiler.is_compiling() was true.
    """

    program: bytes
    parameters: list[tuple[int, int | weakref.ref]]
    names: list[str]
    constants: list[torch.Tensor]
    locations: list[str | None]
    result: Result
    gradients: list[tuple[Reference, int | None]]
    operations: list[Operation]
    text: str
    as_compiling: bool

    def difference(self, other: TraceFingerprint) -> str | None:
        """Describe how a replay of this trace would differ from one of `other`, or return None."""
        if self.program != other.program:
            return self._other_operation(other) or "its operations differ"
        mine, others = self._sources(), other._sources()
        for number, (one, two) in enumerate(zip_longest(mine, others)):
            if one != two:
                return f"it reads {other.names[number]} instead of {self.names[number]}"
        changed = self._changed_constant(other)
        if changed is not None:
            operation = self._other_operation(other)
            found = other.locations[changed]
            where = "" if found is None else f", made in {found},"
            return operation or (
                f"a constant {_described(other.constants[changed])}{where} has other values"
            )
        if self.gradients != other.gradients:
            return "it sets the .grad of other tensors"
        return difference(self.result, other.result, "the result")

    def _sources(self) -> list[tuple[int, int]]:
        """Return the parameters, with tensors identified by their current memory."""
        return [
            (kind, _storage(source()) if isinstance(source, weakref.ref) else source)
            for kind, source in self.parameters
        ]

    def _changed_constant(self, other: TraceFingerprint) -> int | None:
        left = [
            number
            for number, pair in enumerate(zip(self.constants, other.constants, strict=True))
            if len({_XLAC._xla_capture_data_address(tensor) for tensor in pair}) == 2
        ]
        mine, others = (
            _XLAC._xla_get_cpu_tensors([constants[number] for number in left]) if left else []
            for constants in (self.constants, other.constants)
        )
        for number, one, two in zip(left, mine, others, strict=True):
            if not _bytes_of(one).equal(_bytes_of(two)):
                return number
        return None

    def _other_operation(self, other: TraceFingerprint) -> str | None:
        for one, two in zip_longest(self.operations, other.operations):
            if one is None:
                return f"it also runs {two} in {two.location}"
            if two is None:
                return f"it does not run {one} in {one.location}"
            if not one.is_same(two):
                return f"{one} in {one.location} became {two} in {two.location}"
        if not (self.text and other.text):
            return None  # the same program, with another constant
        for one, two in zip_longest(self.text.splitlines(), other.text.splitlines()):
            if one != two:
                return f"the operation {_short(one)} became {_short(two)}"
        return None


def _storage(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else _XLAC._xla_capture_storage(tensor)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)  # nan is nan, and 0.0 is not -0.0


def _short(line: str | None) -> str:
    return "none" if line is None else line.strip().partition(" = ")[2].partition(", location=")[0]
