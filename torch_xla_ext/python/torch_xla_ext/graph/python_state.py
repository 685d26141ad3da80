"""Find the Python objects that a function can reach, and detect changes to them.

A replay does not run the function's Python code. So all values that the code reads (closures,
globals, attributes, modules' parameters, numbers) must be the same as in the trace, and changes
that the code makes would be lost. Objects are compared by identity, plain values by equality. Only
plain values are kept alive: objects are held by weak references, and lists and dictionaries are
looked up again from the objects that hold them.
"""

import contextlib
import contextvars
import functools
import sys
import types
from collections import deque
from collections.abc import Collection
from typing import Any

import torch
import torch_xla

from torch_xla_ext.graph.bytecode import (
    finds_by_strings,
    imported_modules,
    names_of,
    read_globals,
    strings_of,
)
from torch_xla_ext.graph.guards import (
    ABSENT,
    PLAIN,
    Absent,
    Again,
    Attributes,
    ClassAttributes,
    Context,
    Globals,
    Items,
    Members,
    Node,
    Pairs,
    Parts,
    Plain,
    Same,
    Variables,
    is_library,
    methods_of,
    short_key,
)
from torch_xla_ext.graph.positions import position_of
from torch_xla_ext.graph.tensors import refuse_marked

_MAX_DEPTH = 3  # of modules in modules


class PythonState:
    """The Python state that can be reached from `roots`, by name.

    Attributes:
        tensors: the reachable XLA tensors by name, until `forget`.
        host_tensors: the names of the reachable host tensors, by address.
        strings: the reachable strings that can be names of attributes.
    """

    def __init__(self, roots: dict[str, Any]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.host_tensors: dict[int, str] = {}
        self.strings: set[str] = set()
        self._positions: list[tuple[str, Any, Any]] = []  # of iterators, which reading advances
        self._seen: dict[int, Any] = {}  # kept alive until `forget`, so that no address is reused
        self._roots: list[tuple[str, Same, Node]] = []
        self._guard: Any = None
        for name, value in roots.items():
            self.add(name, value)

    def add(self, name: str, value: Any) -> None:
        self._roots.append((name, Same(value), self._node(value, name)))

    def add_globals(self, variables: dict[str, Any], code: types.CodeType, module: str) -> None:
        """Add the globals that `code` names: those of its module, and of imported modules."""
        children = [
            (name, name, self._global(variables[name], f"{module}.{name}", code))
            for name in read_globals(code)
            if name in variables
        ]
        self._roots.append((f"{module}.", Same(variables), Globals(children)))
        imported = imported_modules(code, variables.get("__package__") or "")
        if found := [
            (name, name, self._global(sys.modules[name], name, code))
            for name in sorted(imported)
            if name in sys.modules
        ]:
            self._roots.append(("", Same(sys.modules), Globals(found)))

    def moved(self) -> str | None:
        """Return the first Python iterator or random generator that has since advanced."""
        for path, value, position in self._positions:
            if position_of(value) != position:
                return path
        return None

    def addresses(self) -> set[int]:
        """Return the addresses of the objects found so far, which stay alive until `forget`."""
        return set(self._seen)

    def forget(self, names: Collection[str]) -> None:
        """Keep only the state that can be compared later: attributes with these names."""
        for _, _, node in self._roots:
            node.restrict(names)
        self.tensors.clear()
        self.host_tensors.clear()
        self.strings.clear()
        self._positions.clear()
        self._seen.clear()
        self._guard = torch_xla._XLAC._XlaPythonGuard(
            [(same.object, node.describe()) for _, same, node in self._roots]
        )

    def difference(self) -> str | None:
        """Return the name of the first object that has changed."""
        if self._guard is not None and self._guard.is_same():
            return None
        for name, same, node in self._roots:
            try:
                found = node.difference(same.reference(), name)
            except (KeyError, IndexError, AttributeError, TypeError, ValueError):
                found = name  # of another structure
            if found:
                return found
        return None

    def _node(self, value: Any, path: str) -> Node:
        if isinstance(value, PLAIN):
            if isinstance(value, str) and value.isidentifier():
                self.strings.add(value)
            return Plain(value)
        if id(value) in self._seen:
            return Again(value)
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            if value.device.type == "xla":
                refuse_marked(value, path)
                self.tensors[path] = value
            else:
                self.host_tensors[id(value)] = path
            return Same(value)
        if isinstance(value, (list, tuple, deque)):
            return Items(
                value,
                [(f"[{i}]", i, self._node(item, f"{path}[{i}]")) for i, item in enumerate(value)],
            )
        if isinstance(value, dict) and not all(isinstance(key, PLAIN) for key in value):
            return Pairs(
                value,
                [
                    (Same(key), self._node(item, f"{path}[{short_key(key)}]"))
                    for key, item in value.items()
                ],
            )
        if isinstance(value, dict):
            return Items(
                value,
                [
                    (f"[{short_key(key)}]", key, self._node(item, f"{path}[{short_key(key)}]"))
                    for key, item in value.items()
                ],
            )
        if isinstance(value, (set, frozenset)):
            if all(isinstance(i, PLAIN) for i in value):
                return Plain(type(value)(value))
            return Members(value, {id(i): self._node(i, f"an item of {path}") for i in value})
        if isinstance(value, contextvars.ContextVar):
            return Context(value, self._node(value.get(ABSENT), path))
        if (position := position_of(value)) is not None:
            self._positions.append((path, value, position))
            return Same(value)
        if isinstance(value, types.MethodType):
            return self._parts(value, path, {"__func__": "", "__self__": ""})
        if hasattr(type(value), "captured_function"):
            return self._parts(value, path, {"captured_function": ""})
        if isinstance(value, functools.partial):
            return self._parts(value, path, {"func": "", "args": ".args", "keywords": ".keywords"})
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, type):
            return self._class(value, path)
        if isinstance(value, (types.ModuleType, types.BuiltinFunctionType)):
            return Same(value)
        return self._object(value, path)

    def _class(self, value: type, path: str) -> Node:
        return ClassAttributes(
            value,
            [
                (f".{name}", name, self._node(found, f"{path}.{name}"))
                for name, found in _class_values(value).items()
            ]
            + [
                (f".{name}", name, Same(getattr(value, name)))
                for name in sorted(methods_of(value))
                if isinstance(getattr(value, name, None), (types.FunctionType, property))
            ],
        )

    def _global(self, value: Any, path: str, code: types.CodeType) -> Node:
        """Record a global that `code` names; for a module, the attributes that `code` names."""
        if not isinstance(value, types.ModuleType):
            return self._node(value, path)
        names = names_of(code)
        if finds_by_strings(code):
            names |= strings_of(code)
        return self._module(value, path, names, _MAX_DEPTH)

    def _module(self, value: types.ModuleType, path: str, names: set[str], depth: int) -> Node:
        """Record a module; functions are compared by identity (see `add_globals`)."""
        children: list[tuple[str, Any, Node]] = []
        if depth and not is_library(value.__name__):
            for name in sorted(names & vars(value).keys()):
                found, where = vars(value)[name], f"{path}.{name}"
                if isinstance(found, types.ModuleType):
                    node = self._module(found, where, names, depth - 1)
                elif isinstance(found, types.FunctionType):
                    node = Same(found)
                else:
                    node = self._node(found, where)
                children.append((f".{name}", name, node))
        return Attributes(value, children)

    def _object(self, value: Any, path: str) -> Node:
        own = getattr(value, "__dict__", None)
        inherited: list[tuple[str, Any, Node]] = []
        if own is None:
            slots = [
                name
                for kind in type(value).__mro__
                for name in _slots(kind)
                if hasattr(value, name)
            ]
            own = {name: getattr(value, name) for name in slots}
        elif (of_class := _class_values(type(value))) or not is_library(type(value).__module__):
            self._add_class(type(value))
            inherited = [(f".{key}", key, Absent()) for key in of_class if key not in own]
        return Attributes(
            value,
            [
                (f".{key}", key, self._node(item, f"{path}.{key}"))
                for key, item in list(own.items())
                if isinstance(key, str)
            ]
            + inherited,
        )

    def _add_class(self, kind: type) -> None:
        """Record a class, because its objects inherit its attributes."""
        if id(kind) not in self._seen:
            name = kind.__qualname__
            self._roots.append((name, Same(kind), self._node(kind, name)))

    def _parts(self, value: Any, path: str, parts: dict[str, str]) -> Node:
        return Parts(
            [
                (text, name, self._node(getattr(value, name), path + text))
                for name, text in parts.items()
            ]
        )

    def _function(self, function: types.FunctionType, path: str) -> Node:
        children: list[tuple[str, Any, Node]] = []

        def add(text: str, key: Any, value: Any) -> None:
            children.append((text, key, self._node(value, path + text)))

        for i, name in enumerate(function.__code__.co_freevars):
            with contextlib.suppress(ValueError):  # not assigned yet
                found = function.__closure__[i].cell_contents
                node = self._global(found, f"{path}.{name}", function.__code__)
                children.append((f".{name}", i, node))
        add("", "__code__", function.__code__)
        add(".__defaults__", "__defaults__", function.__defaults__)
        add(".__kwdefaults__", "__kwdefaults__", function.__kwdefaults__)
        if not is_library(function.__module__ or ""):
            code = function.__code__
            for name in sorted(read_globals(code)):
                found = function.__globals__.get(name, ABSENT)
                if found is not ABSENT:
                    children.append(
                        (f".{name}", (name,), self._global(found, f"{path}.{name}", code))
                    )
        return Variables(function, children)


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in slots if not name.startswith("__"))


def _class_values(kind: type) -> dict[str, Any]:
    """Return the attributes of a user's class and its bases, without methods and descriptors."""
    return {
        name: value
        for base in reversed(kind.__mro__)
        if not is_library(base.__module__)
        for name, value in vars(base).items()
        if not (name.startswith("__") or callable(value) or hasattr(type(value), "__get__"))
    }
