"""Reference implementations, which can take a kernel's place to bisect a wrong result."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

ENVIRONMENT = "TORCH_XLA_EXT_USE_REFERENCE"

# (inputs, outputs, attributes) of custom_call; returns a tensor for each of the outputs.
Reference = Callable[
    [Sequence[torch.Tensor | None], Sequence[object], Mapping[str, object]], list[torch.Tensor]
]

_lock = threading.Lock()
_references: dict[str, Reference] = {}
# How many of the blocks that are open name a target.
_in_use: Counter[str] = Counter()
# What the whole process was told.
_everywhere = frozenset(filter(None, os.environ.get(ENVIRONMENT, "").split(",")))


def register_reference(target: str, function: Reference) -> None:
    """Says how a target's results are computed with torch's own operations."""
    with _lock:
        _references[target] = function


def replacement(target: str) -> Reference | None:
    """The reference of `target` if it is to take the kernel's place, else None."""
    if not _in_use and not _everywhere:
        return None
    with _lock:
        named = target in _in_use or target in _everywhere
        function = _references.get(target)
    if function is not None and (named or "*" in _everywhere):
        return function
    if not named:
        return None
    raise ValueError(
        f"custom call {target!r}: there is no reference implementation that could take its place; "
        "give one to torch_xla_ext.debug.register_reference"
    )


@contextlib.contextmanager
def use_reference(*targets: str) -> Iterator[None]:
    """Calls of `targets` that are traced inside compute their reference implementation instead.

    The environment variable TORCH_XLA_EXT_USE_REFERENCE, read at import, does the same for the
    whole process: names with commas between them, or `*` for all targets that have a reference.

    Raises:
        ValueError: at the call, if the target has no reference.
    """
    with _lock:
        _in_use.update(targets)
    try:
        yield
    finally:
        with _lock:
            for target in targets:
                _in_use[target] -= 1
                if not _in_use[target]:
                    del _in_use[target]
