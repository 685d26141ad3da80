"""cuDNN's attention on the CPU: references in PyTorch compute its calls."""

import contextlib
from collections.abc import Iterable, Iterator

import pytest

import torch_xla_ext
from testing.xla import PLATFORM
from torch_xla_ext.custom_call import reference


@contextlib.contextmanager
def computing(targets: Iterable[str]) -> Iterator[None]:
    """In this context the references compute calls of these targets, in autograd's threads, too."""
    if PLATFORM == "CUDA":
        yield
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(reference, "_everywhere", frozenset(targets))
        with torch_xla_ext.debug.use_reference():
            yield
