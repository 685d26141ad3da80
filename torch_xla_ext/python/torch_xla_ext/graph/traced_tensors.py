"""Keep a thread from using tensors that another thread traces a graph with.

A trace writes to the tensors themselves, and undoes it when the program is compiled. Until then,
another thread that runs or traces a graph with one of them waits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import torch
import torch_xla

_XLAC = torch_xla._XLAC

_changed = threading.Condition()
_running: list[Sequence[torch.Tensor]] = []
_traced: list[set[int]] = []
_of_thread = threading.local()


def _storages(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {_XLAC._xla_capture_storage(tensor) for tensor in tensors}


def _is_traced(storages: set[int]) -> bool:
    return any(not storages.isdisjoint(others) for others in _traced)


def _is_running(storages: set[int]) -> bool:
    return any(not storages.isdisjoint(_storages(tensors)) for tensors in _running)


def _is_nested() -> bool:
    """Return whether this thread, for whose end others may wait, must not wait for them."""
    return getattr(_of_thread, "is_using", False)


@contextlib.contextmanager
def tracing(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Keep other threads, in a block, from using the XLA tensors with which it traces a graph."""
    if _is_nested():
        yield
        return
    storages = _storages(tensors)
    with _changed:
        _changed.wait_for(lambda: not _is_traced(storages))
        _traced.append(storages)
        _of_thread.is_using = True
    try:
        with _changed:
            _changed.wait_for(lambda: not _is_running(storages))
        yield
    finally:
        _end(_traced, storages)


class running:  # noqa: N801, a block's function
    """Keep other threads, in a block that runs a graph, from tracing one with its XLA tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors, self._is_nested = tensors, _is_nested()

    def __enter__(self) -> None:
        if self._is_nested:
            return
        with _changed:
            if _traced:
                storages = _storages(self._tensors)
                _changed.wait_for(lambda: not _is_traced(storages))
            _running.append(self._tensors)
            _of_thread.is_using = True

    def __exit__(self, *error: object) -> None:
        if not self._is_nested:
            _end(_running, self._tensors)


def _end(uses: list, use: object) -> None:
    _of_thread.is_using = False
    with _changed:
        del uses[next(i for i, other in enumerate(uses) if other is use)]
        _changed.notify_all()
