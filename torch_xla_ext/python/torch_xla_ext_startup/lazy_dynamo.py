"""Runs torch_xla's bridge to Dynamo when it is first used; torch_xla/version.py imports this.

torch_xla imports the bridge for one function of torch_xla.stablehlo. The bridge imports most of
TorchInductor, which takes two seconds of processor time, and which only torch.compile needs.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

_BRIDGE = "torch_xla._dynamo.dynamo_bridge"
_lock = threading.RLock()
_when_run: list[Callable[[ModuleType], None]] = []


def when_run(module: ModuleType, change: Callable[[ModuleType], None]) -> None:
    """Calls `change` with the module, as soon as it has run."""
    with _lock:
        if isinstance(module, _NotRun):
            _when_run.append(change)
            return
    spec = module.__spec__
    if getattr(spec, "_initializing", False):  # its own imports have led to torch_xla's
        spec._torch_xla_ext_change = change
        spec.__class__ = _RunningSpec
        return
    change(module)


class _RunningSpec(importlib.machinery.ModuleSpec):
    """The spec of a module that is being imported, until the import system says that it has run.

    A module that transformers imports may import torch_xla, for example: accelerate does.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = importlib.machinery.ModuleSpec
            change = self.__dict__.pop("_torch_xla_ext_change")
            if self.name in sys.modules:  # it has not failed
                change(sys.modules[self.name])


class _NotRun(ModuleType):
    """The bridge before it is used, for everything but what inspect asks all modules for."""

    def __getattr__(self, name: str) -> object:
        # `from ... import *` asks for __all__ first.
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        _run(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("__"):
            _run(self)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        _run(self)
        return dir(self)


def _run(module: ModuleType) -> None:
    with _lock:
        if not isinstance(module, _NotRun):
            return  # another thread has done so
        module.__class__ = ModuleType
        try:
            importlib.machinery.SourceFileLoader(_BRIDGE, module.__file__).exec_module(module)
        except BaseException:
            module.__class__ = _NotRun
            raise
        while _when_run:
            _when_run.pop(0)(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _BRIDGE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _make_lazy
        return spec


def _make_lazy(module: ModuleType) -> None:
    module.__class__ = _NotRun


sys.meta_path.insert(0, _Finder())
