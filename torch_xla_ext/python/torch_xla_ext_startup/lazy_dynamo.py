"""Delay the import of Dynamo until its first use; torch_xla/version.py imports this module.

Parts of torch_xla import Dynamo, which takes one to two seconds of processor time, although only
torch.compile needs it. Here

- torch_xla's bridge to Dynamo, which imports most of TorchInductor, and which torch_xla.stablehlo
  imports for one function, runs when it is first used;
- modules of torch_xla that need AOTAutograd or torch.export import these when they are called;
- torch_xla's settings in torch._dynamo.config are made when that is imported.

At its import, Dynamo computes with small tensors, which fails within a mode such as
`torch.device("meta")` or FakeTensorMode. So Dynamo is imported with modes disabled.
"""

import builtins
import contextlib
import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

from xla_kernels import import_hooks
from xla_kernels.import_hooks import Run

_BRIDGE = "torch_xla._dynamo.dynamo_bridge"
# Modules, and those from which they import functions and classes that they only call.
_IMPORTED_WHEN_CALLED = {
    "torch_xla.experimental.scan": "functorch.compile",
    "torch_xla.experimental.unbounded_dynamism_export": "torch._inductor.fx_utils",
    "torch_xla.stablehlo": "torch._export.serde.serialize",
}
_DYNAMO, _CONFIG = "torch._dynamo", "torch._dynamo.config"


def _without_modes(run: Run) -> Run:
    def run_without_modes(module: ModuleType) -> None:
        from torch import _C, overrides
        from torch.utils import _python_dispatch

        with contextlib.ExitStack() as stack:
            for _ in range(_C._len_torch_function_stack()):
                stack.enter_context(overrides._pop_mode_temporarily())
            stack.enter_context(_python_dispatch._disable_current_modes())
            run(module)

    return run_without_modes


def _without_import_of(imported: str) -> Callable[[Run], Run]:
    """Run a module, and delay one of its imports until the imported functions are called."""

    def import_(name: str, *args: object, **options: object) -> object:
        if name != imported:
            return builtins.__import__(name, *args, **options)
        names = args[2] if len(args) > 2 else options["fromlist"]
        functions = {name: _imported_when_called(imported, name) for name in names}
        return SimpleNamespace(**functions)

    def change(run: Run) -> Run:
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
    """Stands in for torch._dynamo.config until it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if _CONFIG in sys.modules:
            setattr(sys.modules[_CONFIG], name, value)
        else:
            vars(self)[name] = value

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(_CONFIG), name)


class _NotImported(ModuleType):
    """Stands in for torch._dynamo until it is imported."""

    config = _Settings()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_DYNAMO), name)


def _with_settings(run: Run) -> Run:
    def run_and_set(module: ModuleType) -> None:
        run(module)
        for name, value in vars(_NotImported.config).items():
            setattr(module, name, value)

    return run_and_set


import_hooks.run_when_used(_BRIDGE)
import_hooks.change_run(_CONFIG, _with_settings)
import_hooks.change_run(_DYNAMO, _without_modes)
for _module, _imported in _IMPORTED_WHEN_CALLED.items():
    import_hooks.change_run(_module, _without_import_of(_imported))
import_hooks.stand_in(_DYNAMO, _NotImported(_DYNAMO))
