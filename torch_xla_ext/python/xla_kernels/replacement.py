"""Replace functions of other libraries, and restore them.

All replacements in torch_xla_ext are in tables of `Fix` (table.py), or go through
`temporarily_replaced`. No other module assigns to an attribute of another library's module or
class; tests/upstream_fixes/assignments_test.py checks this.

Changes through a library's public API need no row: kernels that are registered with torch.library,
hooks of optimizers, packages of torch.serialization.
"""

import contextlib
import dataclasses
import functools
import importlib
import inspect
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType

from xla_kernels import import_hooks

WITHOUT_ENVIRONMENT = "TORCH_XLA_EXT_WITHOUT_FIX"
_ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Fix:
    """Replacements of other libraries' functions, made for one reason.

    Attributes:
        name: the name for `revert` and the environment variable TORCH_XLA_EXT_WITHOUT_FIX.
        versions: the libraries' versions for which the fix was written.
        reason: the fault without the fix, in one sentence.
        test: the test file that fails without the fix.
        replaces: the functions, as "module:attribute" or "module:Class.attribute", and for each the
            function that makes the replacement from the original, as "module:function". If that
            returns the original, nothing is replaced. Functions that a library's version lacks are
            skipped. In a module's name, a `*` stands for one word; the attribute `*` stands for
            each function of each class that the module defines.
        after: further modules that must be imported before the replacement.
        adds: whether the attribute may be missing; the original is then None.
        everywhere: whether to replace the function also in modules that have imported it.
    """

    name: str
    versions: str
    reason: str
    test: str
    replaces: Mapping[str, str]
    after: tuple[str, ...] = ()
    adds: bool = False
    everywhere: bool = False

    @property
    def libraries(self) -> list[str]:
        """The libraries whose functions are replaced."""
        modules = dict.fromkeys(target.partition(":")[0] for target in self.replaces)
        names = ["torch_xla" if name == "_XLAC" else name.partition(".")[0] for name in modules]
        return list(dict.fromkeys(names))


@dataclasses.dataclass(frozen=True, eq=False)
class _Replaced:
    """A replaced attribute.

    Attributes:
        name: the attribute's full name, also in a module that imported it from another module.
        holder: the object that has the attribute.
        attribute: the attribute's name in the holder.
        before: the holder's former value; `_ABSENT` if it inherits the attribute, or lacks it.
        value: the holder's current value.
    """

    name: str
    holder: object
    attribute: str
    before: object
    value: object

    def is_of(self, holder: object, attribute: str) -> bool:
        return self.holder is holder and self.attribute == attribute


_fixes: dict[str, Fix] = {}
_reverted: set[str] = set()
_replaced: dict[str, list[_Replaced]] = {}
_lock = threading.Lock()


def install(fixes: Iterable[Fix]) -> None:
    """Apply the fixes, except those that TORCH_XLA_EXT_WITHOUT_FIX names."""
    without = set(filter(None, os.environ.get(WITHOUT_ENVIRONMENT, "").split(",")))
    for fix in fixes:
        _fixes[fix.name] = fix
        _replaced[fix.name] = []
        if fix.name in without:
            _reverted.add(fix.name)
        for target, make in fix.replaces.items():
            _when_imported(fix, target, make)
    for name in sorted(without - _fixes.keys()):
        warnings.warn(f"{WITHOUT_ENVIRONMENT}: there is no fix {name!r}", stacklevel=2)


def apply(name: str) -> None:
    """Apply a fix that was reverted or left out."""
    _reverted.discard(name)
    for target, make in _fixes[name].replaces.items():
        _when_imported(_fixes[name], target, make)


def revert(name: str) -> None:
    """Restore the functions that a fix replaces. Code that has imported a replacement keeps it.

    Raises:
        KeyError: there is no such fix.
        RuntimeError: something else has since replaced one of the functions.
    """
    with _lock:
        for one in _replaced[name]:
            if _own(one.holder, one.attribute) is not one.value:
                raise RuntimeError(
                    f"revert: something else has since replaced {one.name}; restore that first"
                )
        _reverted.add(name)
        while _replaced[name]:
            one = _replaced[name].pop()
            _set(one.holder, one.attribute, one.before)


def active() -> list[tuple[Fix, list[str]]]:
    """Return the fixes that are active in this process, with the attributes' full names."""
    names = {
        name: list(dict.fromkeys(one.name for one in ones)) for name, ones in _replaced.items()
    }
    return [(_fixes[name], replaced) for name, replaced in names.items() if replaced]


def installed() -> list[Fix]:
    """Return all fixes, including those that wait for the import of their libraries."""
    return list(_fixes.values())


@contextlib.contextmanager
def temporarily_replaced(holder: object, name: str, value: object) -> Iterator[None]:
    """Within a block, replace an attribute of another library's module, class or object."""
    before = _own(holder, name)
    _set(holder, name, value)
    try:
        yield
    finally:
        _set(holder, name, before)


def _when_imported(fix: Fix, target: str, make: str) -> None:
    module, _, path = target.partition(":")

    def wait(name: str) -> None:
        import_hooks.when_imported(
            [name, *fix.after], functools.partial(_replace, fix, name, path, make)
        )

    if "*" in module:
        import_hooks.for_each_module(module, wait)
    else:
        wait(module)


def _replace(fix: Fix, module: str, path: str, make: str) -> None:
    """Replace one of a fix's functions in an imported module."""
    if fix.name in _reverted:
        return
    for holder, attribute, name in _found(sys.modules[module], path):
        own = _own(holder, attribute)
        earlier = [one for one in _replaced[fix.name] if one.is_of(holder, attribute)]
        if any(one.value is own for one in earlier):
            continue
        if fix.adds:
            original = None if own is _ABSENT else own
        elif (original := _get(holder, attribute)) is None:
            continue
        value = _function(make)(original)
        if value is original:
            continue
        with _lock:
            if _own(holder, attribute) is not own:
                continue  # another thread has replaced it
            for one in earlier:  # before the module was loaded again
                _replaced[fix.name].remove(one)
            _set(holder, attribute, value)
            _replaced[fix.name].append(_Replaced(name, holder, attribute, own, value))
            for other in _importers(original, attribute, holder) if fix.everywhere else ():
                _replaced[fix.name].append(_Replaced(name, other, attribute, original, value))
                _set(other, attribute, value)


def _found(module: ModuleType, path: str) -> Iterator[tuple[object, str, str]]:
    """Return the attributes that a path names, as pairs of the object and the attribute's name."""
    if path == "*":
        for kind in [value for value in vars(module).values() if inspect.isclass(value)]:
            if kind.__module__ == module.__name__:
                for name in [name for name, f in vars(kind).items() if inspect.isfunction(f)]:
                    yield kind, name, f"{module.__name__}.{kind.__name__}.{name}"
        return
    *parents, attribute = path.split(".")
    holder = functools.reduce(_get, parents, module)
    if holder is not None:
        yield holder, attribute, f"{module.__name__}.{path}"


def _importers(function: object, name: str, holder: object) -> list[ModuleType]:
    """Return the modules that have imported a function from another one."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    others = [module for module in modules if module is not holder]
    return [module for module in others if vars(module).get(name) is function]


@functools.cache
def _function(path: str) -> Callable[[object], object]:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _get(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)


def _own(holder: object, name: str) -> object:
    """Return the object's own attribute, or `_ABSENT` if it is inherited or computed."""
    return (holder if isinstance(holder, dict) else vars(holder)).get(name, _ABSENT)


def _set(holder: object, name: str, value: object) -> None:
    if isinstance(holder, dict):
        holder.pop(name, None) if value is _ABSENT else holder.update({name: value})
    elif value is not _ABSENT:
        setattr(holder, name, value)
    elif name in vars(holder):
        delattr(holder, name)
