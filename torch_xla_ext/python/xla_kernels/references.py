"""Registry of the kernels' reference implementations, which use PyTorch operations."""

import threading
from collections.abc import Callable, Mapping, Sequence

import torch

# Receives (inputs, outputs, attributes) and returns a tensor for each output; see
# register_reference.
Reference = Callable[
    [Sequence[torch.Tensor | None], Sequence[object], Mapping[str, object]], list[torch.Tensor]
]

_lock = threading.Lock()
_references: dict[str, Reference] = {}


def register_reference(target: str, function: Reference) -> None:
    """Register a function that computes a target's results with PyTorch operations.

    Args:
        target: the kernel's name.
        function: called as function(inputs, outputs, attributes), it returns a tensor for each
            output. `inputs` are tensors, or None for an absent one; `outputs` describe the results;
            `attributes` are the kernel's parameters, or {"payload": the bytes} if the caller packs
            the payload.
    """
    with _lock:
        _references[target] = function


def reference(target: str) -> Reference | None:
    """Return the target's reference implementation, or None."""
    with _lock:
        return _references.get(target)


def names() -> list[str]:
    """Return the targets that have a reference."""
    with _lock:
        return list(_references)
