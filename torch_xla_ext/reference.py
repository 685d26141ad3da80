"""Reference implementations, which can take a kernel's place to bisect a wrong result."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

ENVIRONMENT = "TORCH_XLA_EXT_USE_REFERENCE"

# (inputs, outputs, attributes) of custom_call; returns a tensor for each of the outputs.
Reference = Callable[
    [Sequence[torch.Tensor | None], Sequence[object], Mapping[str, object]], list[torch.Tensor]
]

_lock = threading.Lock()
_references: dict[str, Reference] = {}
_in_use: set[str] = set()


def _from_environment(target: str) -> bool:
    names = os.environ.get(ENVIRONMENT, "")
    return target in names.split(",") or names == "*"


def register_reference(target: str, function: Reference) -> None:
    """Says how a target's results are computed with torch's own operations."""
    with _lock:
        _references[target] = function


def replacement(target: str) -> Reference | None:
    """The reference of `target` if it is to take the kernel's place, else None."""
    if not _in_use and ENVIRONMENT not in os.environ:
        return None
    with _lock:
        if target not in _in_use and not _from_environment(target):
            return None
        if target in _references:
            return _references[target]
    if os.environ.get(ENVIRONMENT) == "*" and target not in _in_use:
        return None  # of all that have one
    raise ValueError(
        f"custom call {target!r}: there is no reference implementation that could take its place; "
        "give one to torch_xla_ext.debug.register_reference"
    )


@contextlib.contextmanager
def use_reference(*targets: str) -> Iterator[None]:
    """Calls of `targets` that are traced inside compute their reference implementation instead.

    The environment variable TORCH_XLA_EXT_USE_REFERENCE does the same for the whole process: names
    with commas between them, or `*` for all targets that have a reference.

    Raises:
        ValueError: at the call, if the target has no reference.
    """
    with _lock:
        added = set(targets) - _in_use
        _in_use.update(added)
    try:
        yield
    finally:
        with _lock:
            _in_use.difference_update(added)
