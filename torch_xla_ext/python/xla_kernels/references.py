"""Reference implementations of kernels, as PyTorch operations."""

import threading
from collections.abc import Callable, Mapping, Sequence

import torch

# (inputs, outputs, attributes); returns a tensor for each of the outputs. The attributes are those
# of the call; of a call with a payload, {"payload": the bytes}.
Reference = Callable[
    [Sequence[torch.Tensor | None], Sequence[object], Mapping[str, object]], list[torch.Tensor]
]

_lock = threading.Lock()
_references: dict[str, Reference] = {}


def register_reference(target: str, function: Reference) -> None:
    """Register a function that computes a target's results with PyTorch operations.

    Args:
        target: the kernel's name.
        function: of (inputs, outputs, attributes). `inputs` are tensors, None for an absent one;
            `outputs` describe the results; `attributes` are the kernel's parameters, or for a
            target with a payload of its own {"payload": the bytes}. It returns a tensor for each
            output.
    """
    with _lock:
        _references[target] = function


def reference(target: str) -> Reference | None:
    """Return the function that was registered; None if there is none."""
    with _lock:
        return _references.get(target)


def names() -> list[str]:
    """Return the targets that have a reference."""
    with _lock:
        return list(_references)
