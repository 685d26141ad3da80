"""Replay a captured step."""

import re
import weakref
from concurrent.futures import Future
from typing import Any

import torch
import torch_xla
from torch_xla import runtime

from torch_xla_ext.graph.errors import CaptureError
from torch_xla_ext.graph.python_state import PythonState
from torch_xla_ext.graph.tensors import clone_of, sharding_of
from torch_xla_ext.graph.trace_fingerprint import TraceFingerprint

_XLAC = torch_xla._XLAC


class Replay:
    """A compiled step, and the state for which it was compiled."""

    def __init__(
        self,
        program: Any,
        state: PythonState,
        fingerprint: TraceFingerprint,
        num_written: int,
        copied: list[int],
        copied_back: list[int],
        state_tensors: list[torch.Tensor],
        compilation: Future[None] | None = None,
    ) -> None:
        """Initialize a replay; `compilation` is the program's compilation, unless it has ended."""
        self.num_inputs, self.num_written = len(fingerprint.names), num_written
        # Kept until the last call that is compared with it.
        self.fingerprint: TraceFingerprint | None = fingerprint
        self._registrations = _XLAC._xla_capture_registrations()
        self.calls = 1
        self.replaces_another = False  # its second trace was another program
        self.starts_here = False  # in the calling thread
        self._compilation = compilation
        self._sharded = [weakref.ref(tensor) for tensor in state_tensors if runtime.is_spmd()]
        self._shardings = self._find_shardings()
        if self._sharded:
            program.cache_shardings()
        self._copied, self._copied_back = copied, copied_back
        self._program, self._state, self._names = program, state, fingerprint.names
        self._result, self._gradients = fingerprint.result, fingerprint.gradients

    def is_outdated(self) -> str | None:
        """Return why the replay is no longer valid, or None."""
        if self._registrations != _XLAC._xla_capture_registrations():  # it calls the older function
            return "a kernel was registered"
        is_lost = self._compilation is not None and self._compilation.cancelled()
        return "its program was not compiled" if is_lost else None

    def python_mismatch(self) -> str | None:
        """Return the name of the Python value that has changed since the step was captured."""
        changed = self._state.difference()
        return f"{changed} changed" if changed else None

    def mismatch(self, arguments: list[torch.Tensor]) -> str | None:
        """Return what has changed since the capture, other than tensors' values, or None."""
        if not self._program.matches(arguments):
            return "tensors of its state were replaced, reshaped, or share memory with others now"
        if self._sharded:
            if self._find_shardings() != self._shardings:
                return "the sharding of a tensor of its state changed"
            self._program.cache_shardings()
        return None

    def _find_shardings(self) -> list[str]:
        return _XLAC._get_xla_sharding_specs([tensor() for tensor in self._sharded])

    def run_if_matches(self, arguments: list[torch.Tensor]) -> tuple[Any] | None:
        """Run the replay if a quick check, without all guards, shows that it is valid."""
        if self._copied or self._compilation is not None:
            return None
        try:
            new = self._program.run_if_matches(arguments, self.starts_here)
        except RuntimeError as error:
            raise self._named(error) from error
        return None if new is None else (self._finish(arguments, arguments, new),)

    def run(self, arguments: list[torch.Tensor]) -> Any:
        if self._compilation is not None:
            self._compilation.result()
            self._program.find_computation()
            self._compilation = None
        inputs = arguments
        if self._copied:
            inputs = list(arguments)
            with torch.no_grad():
                for number in self._copied:
                    argument = arguments[number]
                    inputs[number] = clone_of(argument, sharding_of(argument))
        try:
            new = self._program.run(inputs)
        except RuntimeError as error:
            raise self._named(error) from error
        return self._finish(arguments, inputs, new)

    def _finish(
        self, arguments: list[torch.Tensor], inputs: list[torch.Tensor], new: list[torch.Tensor]
    ) -> Any:
        if self._copied_back:
            self._copy_back(arguments, inputs)
        for reference, number in self._gradients:
            reference.find(arguments).grad = None if number is None else new[number]
        with torch.no_grad():
            return self._result.make(arguments, new)

    def _copy_back(self, arguments: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
        """Copy new values back to the views that the step wrote to."""
        with torch.no_grad():
            for number in self._copied_back:
                arguments[number].copy_(inputs[number])
        bases = [_XLAC._xla_capture_base(arguments[number]) for number in self._copied_back]
        _XLAC._xla_sync_multi(bases, [], False, False)

    def _named(self, error: RuntimeError) -> CaptureError:
        """Replace the argument's number in an error of XLA by its name."""
        text = str(error)
        found = re.search(r"argument (\d+) ", text)
        if found and int(found[1]) < len(self._names):
            text = f"captured step: argument {found[1]} is {self._names[int(found[1])]}: {text}"
        return CaptureError(text)
