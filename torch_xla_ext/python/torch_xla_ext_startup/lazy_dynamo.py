"""Imports Dynamo when it is first used; torch_xla/version.py imports this.

Parts of torch_xla import it, or more, which takes one to two seconds of processor time and
which only torch.compile needs:

- its bridge to Dynamo, which it imports for one function of torch_xla.stablehlo, runs when it is
  used: it imports most of TorchInductor, too;
- its modules that need something of AOTAutograd or torch.export import it when they are called;
- what torch_xla sets in torch._dynamo.config is set when that is imported.

Dynamo computes with small tensors when it is imported. That fails where a mode is active, such as
`torch.device("meta")` or FakeTensorMode, in PyTorch itself, too: it is imported without modes.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace

_BRIDGE = "torch_xla._dynamo.dynamo_bridge"
# Modules, and those from which they import functions and classes that they only call.
_IMPORTED_WHEN_CALLED = {
    "torch_xla.experimental.scan": "functorch.compile",
    "torch_xla.experimental.unbounded_dynamism_export": "torch._inductor.fx_utils",
    "torch_xla.stablehlo": "torch._export.serde.serialize",
}
_DYNAMO, _CONFIG = "torch._dynamo", "torch._dynamo.config"
_Run = Callable[[ModuleType], None]

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
    """Changes how these modules run."""

    def __init__(self, changes: dict[str, Callable[[_Run], _Run]]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._changes[name](spec.loader.exec_module)
        return spec


def _without_modes(run: _Run) -> _Run:
    def run_without_modes(module: ModuleType) -> None:
        from torch import _C, overrides
        from torch.utils import _python_dispatch

        with contextlib.ExitStack() as stack:
            for _ in range(_C._len_torch_function_stack()):
                stack.enter_context(overrides._pop_mode_temporarily())
            stack.enter_context(_python_dispatch._disable_current_modes())
            run(module)

    return run_without_modes


def _when_used(_: _Run) -> _Run:
    def make_lazy(module: ModuleType) -> None:
        module.__class__ = _NotRun

    return make_lazy


def _without_import_of(imported: str) -> Callable[[_Run], _Run]:
    """Runs a module that imports another one only when it calls one of its functions."""

    def import_(name: str, *args: object, **options: object) -> object:
        if name != imported:
            return builtins.__import__(name, *args, **options)
        names = args[2] if len(args) > 2 else options["fromlist"]
        functions = {name: _imported_when_called(imported, name) for name in names}
        return SimpleNamespace(**functions)

    def change(run: _Run) -> _Run:
        def run_without(module: ModuleType) -> None:
            module.__builtins__ = {**vars(builtins), "__import__": import_}
            run(module)

        return run_without

    return change


def _imported_when_called(module: str, name: str) -> Callable[..., object]:
    def function(*args: object, **options: object) -> object:
        return getattr(importlib.import_module(module), name)(*args, **options)

    return function


class _Settings:
    """torch._dynamo.config, before it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if _CONFIG in sys.modules:
            setattr(sys.modules[_CONFIG], name, value)
        else:
            vars(self)[name] = value

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(_CONFIG), name)


class _NotImported(ModuleType):
    """torch._dynamo, before it is imported."""

    config = _Settings()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_DYNAMO), name)


def _with_settings(run: _Run) -> _Run:
    def run_and_set(module: ModuleType) -> None:
        run(module)
        for name, value in vars(_NotImported.config).items():
            setattr(module, name, value)

    return run_and_set


sys.meta_path.insert(
    0,
    _Finder(
        {name: _without_import_of(imported) for name, imported in _IMPORTED_WHEN_CALLED.items()}
        | {_BRIDGE: _when_used, _CONFIG: _with_settings, _DYNAMO: _without_modes}
    ),
)
if _DYNAMO not in sys.modules:
    sys.modules["torch"]._dynamo = _NotImported(_DYNAMO)  # the import replaces it
