"""Change how modules of other libraries are imported, and call functions after their import.

A finder precedes Python's own finders. It finds a module in its usual place, and wraps the function
that runs it.
"""

import functools
import importlib
import importlib.abc
import importlib.machinery
import re
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

Run = Callable[[ModuleType], None]

_aliases: dict[str, str] = {}
_changes: dict[str, Callable[[Run], Run]] = {}
_actions: dict[str, list[tuple[tuple[str, ...], Callable[[], None]]]] = {}
_patterns: list[tuple[re.Pattern[str], Callable[[str], None], set[str]]] = []
# Modules whose code has run, although their import may not have ended.
_finished: set[str] = set()
# Modules that are imported, but whose code runs at their first use.
_not_run: set[str] = set()
_lock = threading.RLock()


def alias(name: str, target: str) -> None:
    """Make `import name` return the same module object as `import target`."""
    _aliases[name] = target


def change_run(name: str, change: Callable[[Run], Run]) -> None:
    """Let `change` wrap the function that runs the module at import."""
    _changes[name] = change


def run_when_used(name: str) -> None:
    """Run the module when one of its attributes is used, instead of at import."""

    def make_lazy(module: ModuleType) -> None:
        _not_run.add(name)
        module.__class__ = _LazyModule

    change_run(name, lambda _: make_lazy)


def stand_in(name: str, module: ModuleType) -> None:
    """Set a module as its parent's attribute, until an import replaces it."""
    parent, _, child = name.rpartition(".")
    if name not in sys.modules:
        setattr(sys.modules[parent], child, module)


def when_imported(names: Sequence[str], action: Callable[[], None]) -> None:
    """Call `action` when all these modules have been imported; now, if they already have.

    It is called again whenever one of them is imported again.
    """
    for name in names:
        _actions.setdefault(name, []).append((tuple(names), action))
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "_initializing", False):  # its own imports have led to torch_xla's
            spec.__class__ = _RunningSpec
    if all(map(_has_run, names)):
        action()


def for_each_module(pattern: str, action: Callable[[str], None]) -> None:
    """Call `action` with the name of each module that matches, after its import.

    Args:
        pattern: a module's name, where a `*` stands for one or more letters, digits and `_`.
    """
    entry = re.compile(re.escape(pattern).replace(r"\*", r"\w+")), action, set()
    _patterns.append(entry)
    for name in list(sys.modules):
        _match(name, *entry)


def _match(
    name: str, pattern: re.Pattern[str], action: Callable[[str], None], matched: set[str]
) -> None:
    if pattern.fullmatch(name) and name not in matched:
        matched.add(name)
        when_imported([name], functools.partial(action, name))


def _has_run(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None or name in _not_run:
        return False
    spec = getattr(module, "__spec__", None)
    return name in _finished or not getattr(spec, "_initializing", False)


def _act_on(name: str) -> None:
    """Call the actions that waited for the module's import."""
    for names, action in list(_actions.get(name, ())):
        if all(map(_has_run, names)):
            action()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in _aliases:
            return importlib.machinery.ModuleSpec(name, _Alias(_aliases[name]))
        for entry in _patterns:
            _match(name, *entry)
        if name not in _changes and name not in _actions:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module
            if name in _changes:
                run = _changes[name](run)

            def run_and_act(module: ModuleType) -> None:
                run(module)
                _finished.add(name)
                _act_on(name)

            spec.loader.exec_module = run_and_act
        return spec


class _Alias(importlib.abc.Loader):
    def __init__(self, target: str) -> None:
        self._target = target

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the module that is in sys.modules afterwards.
        sys.modules[module.__name__] = importlib.import_module(self._target)


class _RunningSpec(importlib.machinery.ModuleSpec):
    """The spec of a module that is still being imported.

    This happens if a module that transformers imports, such as accelerate, imports torch_xla.
    """

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = importlib.machinery.ModuleSpec
            if self.name in sys.modules:  # it has not failed
                _act_on(self.name)


class _LazyModule(ModuleType):
    """A module before its first use. Reads of the attributes that inspect queries are not a use."""

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
        if not isinstance(module, _LazyModule):
            return  # another thread has done so
        module.__class__ = ModuleType
        try:
            loader = importlib.machinery.SourceFileLoader(module.__name__, module.__file__)
            loader.exec_module(module)
        except BaseException:
            module.__class__ = _LazyModule
            raise
        _not_run.discard(module.__name__)
        _act_on(module.__name__)


sys.meta_path.insert(0, _Finder())
