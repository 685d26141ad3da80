"""A module under a second name."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType


def spec(name: str, target: str) -> importlib.machinery.ModuleSpec:
    """What a finder returns if `import name` is to give the module `target`, the same object."""
    return importlib.machinery.ModuleSpec(name, _Alias(target))


class _Alias(importlib.abc.Loader):
    def __init__(self, target: str) -> None:
        self._target = target

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns what is in sys.modules afterwards.
        sys.modules[module.__name__] = importlib.import_module(self._target)
