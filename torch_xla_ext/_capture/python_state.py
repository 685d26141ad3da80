"""The Python objects that a function can reach, and whether they have changed.

A replay does not run the function's Python code. So everything that the code reads (closures,
globals, attributes, modules' parameters, numbers) must be the same as when the step was traced, and
changes that it makes would be lost. Objects are compared by identity, plain values by equality.
Only plain values are kept alive: objects are held by weak references, and lists and dictionaries
are looked up again from the objects that hold them.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import enum
import functools
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch_xla

from torch_xla_ext._capture.bytecode import (
    finds_by_strings,
    names_of,
    read_globals,
    strings_of,
)

_PLAIN = (
    *(int, float, complex, str, bytes, bool, type(None), type(Ellipsis), range, slice, enum.Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_ABSENT = object()
ON_THE_HOST = "a tensor on the host"
_MAX_CONTENTS = 1 << 16  # bytes of a tensor on the host that are compared at each call
# Their names are not the user's to assign; what they assign themselves is for later calls, such as
# sysconfig's variables and Triton's compiled kernels.
_LIBRARIES = {"torch", "torch_xla", "torch_xla_ext", "numpy", "triton"} | sys.stdlib_module_names


def is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


_MAX_DEPTH = 3  # of modules in modules

# csrc/capture/python_guard.cc's Node::Kind.
_PLAIN_NODE, _SAME, _ADDRESS, _SEQUENCE, _DICTIONARY = range(5)
_ATTRIBUTES, _FUNCTION, _PARTS, _CALL, _ABSENT_NODE = range(5, 10)
_ANY_SIZE = 2**64 - 1
Description = tuple[int, Any, int, list]


class Node:
    """What a value was. `difference` is where a value is not that any more, else None."""

    def describe(self) -> Description:
        """The same for csrc/capture/python_guard.cc: kind, object, number, children."""
        return (_CALL, lambda value: self.difference(value, "?") is None, 0, [])

    def difference(self, value: Any, path: str) -> str | None:
        raise NotImplementedError

    def restrict(self, names: Collection[str]) -> None:
        """Forgets attributes of objects and variables of functions with other names."""


def is_plain(value: Any) -> bool:
    """Whether it is compared by value, and can be kept."""
    return isinstance(value, _PLAIN)


def same_plain(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)  # 0.0 and -0.0 are not the same, and nan is
    return one == other


class Plain(Node):
    def __init__(self, value: Any) -> None:
        self.value = value

    def difference(self, value: Any, path: str) -> str | None:
        return None if same_plain(value, self.value) else path

    def describe(self) -> Description:
        if isinstance(self.value, (float, complex)) and (self.value == 0):
            return super().describe()
        return (_PLAIN_NODE, self.value, 0, [])


class Same(Node):
    """One object; of tensors on the host also their values."""

    def __init__(self, value: Any) -> None:
        try:
            self.object = weakref.ref(value)
            self.reference: Callable[[], Any] = self.object
        except TypeError:
            self.object = value
            self.reference = lambda: value
        self.version = self._version(value)

    @staticmethod
    def _version(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type != "xla":
            version = None if value.is_inference() else value._version
            return (version, _small_contents(value))
        if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            return value.tobytes()
        return None

    def difference(self, value: Any, path: str) -> str | None:
        if value is not self.reference():
            return path
        if self.version is not None and self._version(value) != self.version:
            return f"{path}, {ON_THE_HOST}," if isinstance(value, torch.Tensor) else path
        return None

    def describe(self) -> Description:
        if self.version is not None:
            return super().describe()
        return (_SAME, self.object, 0, [])


class Context(Node):
    """A context variable, with its value in the context of the call."""

    def __init__(self, value: contextvars.ContextVar, node: Node) -> None:
        self.identity, self.node = Same(value), node

    def difference(self, value: Any, path: str) -> str | None:
        found = self.identity.difference(value, path)
        return found or self.node.difference(value.get(_ABSENT), path)

    def restrict(self, names: Collection[str]) -> None:
        self.node.restrict(names)


class Members(Node):
    """A set of objects."""

    def __init__(self, value: Any, nodes: dict[int, Node]) -> None:
        self.identity, self.nodes = Same(value), nodes

    def difference(self, value: Any, path: str) -> str | None:
        if self.identity.difference(value, path) or {id(item) for item in value} != set(self.nodes):
            return path
        for item in value:
            if found := self.nodes[id(item)].difference(item, f"an item of {path}"):
                return found
        return None

    def restrict(self, names: Collection[str]) -> None:
        for node in self.nodes.values():
            node.restrict(names)


class Absent(Node):
    """An attribute that an object does not have of its own, but by its class."""

    def difference(self, value: Any, path: str) -> str | None:
        return None if value is _ABSENT else path

    def describe(self) -> Description:
        return (_ABSENT_NODE, None, 0, [])


class Again(Node):
    """What was met before, where it is compared."""

    def __init__(self, value: Any) -> None:
        self.address = id(value)

    def difference(self, value: Any, path: str) -> str | None:
        return None if id(value) == self.address else path

    def describe(self) -> Description:
        return (_ADDRESS, None, self.address, [])


class Pairs(Node):
    """A dictionary with objects as keys, such as an optimizer's state."""

    def __init__(self, value: dict[Any, Any], pairs: list[tuple[Node, Node]]) -> None:
        self.pairs = pairs

    def difference(self, value: Any, path: str) -> str | None:
        if len(value) != len(self.pairs):
            return path
        for (key, item), (key_node, item_node) in zip(value.items(), self.pairs, strict=True):
            where = f"{path}[{_short(key)}]"
            found = key_node.difference(key, where) or item_node.difference(item, where)
            if found:
                return found
        return None

    def restrict(self, names: Collection[str]) -> None:
        for _, item in self.pairs:
            item.restrict(names)


class Children(Node):
    """Values that are found from another one by keys."""

    def __init__(self, children: list[tuple[str, Any, Node]]) -> None:
        self.children = children

    def get(self, value: Any, key: Any) -> Any:
        return value[key]

    def difference(self, value: Any, path: str) -> str | None:
        for text, key, child in self.children:
            found = child.difference(self.get(value, key), path + text)
            if found:
                return found
        return None

    def restrict(self, names: Collection[str]) -> None:
        for _, _, child in self.children:
            child.restrict(names)

    def described_children(self) -> list[tuple[Any, Description]]:
        return [(key, child.describe()) for _, key, child in self.children]


class Items(Children):
    """A list, tuple, set or dictionary."""

    def __init__(self, value: Any, children: list[tuple[str, Any, Node]]) -> None:
        super().__init__(children)
        self.type, self.size = type(value), len(value)
        self.keys = [key for _, key, _ in children]

    def get(self, value: Any, key: Any) -> Any:
        return value.get(key, _ABSENT) if isinstance(value, dict) else value[key]

    def difference(self, value: Any, path: str) -> str | None:
        if type(value) is not self.type or len(value) != self.size:
            return path
        if isinstance(value, dict) and list(value) != self.keys:
            return f"the order of {path}"
        return super().difference(value, path)

    def describe(self) -> Description:
        if issubclass(self.type, collections.OrderedDict) and self.size > 1:
            return super().describe()  # which keeps its order where C++ does not see it
        if issubclass(self.type, dict):
            return (_DICTIONARY, self.type, self.size, self.described_children())
        if issubclass(self.type, (list, tuple)):
            return (_SEQUENCE, self.type, self.size, self.described_children())
        return super().describe()


class Attributes(Children):
    """An object, with the attributes that are its own."""

    def __init__(self, value: Any, children: list[tuple[str, Any, Node]]) -> None:
        super().__init__(children)
        self.identity = Same(value)
        self.type = id(type(value))
        self.has_dict = hasattr(value, "__dict__")
        # Of a user's object: a first call may make more, for later ones.
        self.names: set[str] | None = None
        if self.has_dict and not is_library(type(value).__module__):
            self.names = set(vars(value))
        # What a later attribute of the object would hide.
        self.methods = _methods(type(value)) if self.has_dict else set()

    def get(self, value: Any, key: Any) -> Any:
        own = getattr(value, "__dict__", None)
        return own.get(key, _ABSENT) if own is not None else getattr(value, key, _ABSENT)

    def difference(self, value: Any, path: str) -> str | None:
        if id(type(value)) != self.type:
            return f"the class of {path}"
        return self.identity.difference(value, path) or super().difference(value, path)

    def restrict(self, names: Collection[str]) -> None:
        value = self.identity.reference()
        if self.names is not None and value is not None:
            made = vars(value).keys() - self.names
            self.children += [(f".{name}", name, Absent()) for name in made]
        if self.methods and value is not None:
            hidden = self.methods.intersection(names) - vars(value).keys()
            self.children += [(f".{name}", name, Absent()) for name in sorted(hidden)]
        self.children = [child for child in self.children if child[1] in names]
        super().restrict(names)

    def describe(self) -> Description:
        if (not self.has_dict and self.children) or self.identity.version is not None:
            return super().describe()
        return (_ATTRIBUTES, self.identity.object, self.type, self.described_children())


class ClassAttributes(Attributes):
    """A class, with the values among its attributes and among those that it inherits."""

    def get(self, value: Any, key: Any) -> Any:
        return getattr(value, key, _ABSENT)

    def describe(self) -> Description:
        return (_FUNCTION, self.identity.object, 0, self.described_children())


class Variables(Children):
    """A function, with its closure, defaults, and the globals that its code names."""

    def __init__(self, value: Any, children: list[tuple[str, Any, Node]]) -> None:
        super().__init__(children)
        self.identity = Same(value)

    def get(self, value: Any, key: Any) -> Any:
        """`key` is the number of a cell, a tuple with the name of a global, or an attribute."""
        if isinstance(key, int):
            return value.__closure__[key].cell_contents
        return value.__globals__[key[0]] if isinstance(key, tuple) else getattr(value, key)

    def difference(self, value: Any, path: str) -> str | None:
        return self.identity.difference(value, path) or super().difference(value, path)

    def describe(self) -> Description:
        return (_FUNCTION, self.identity.object, 0, self.described_children())


class PythonState:
    """What can be reached from `roots`, by name.

    Attributes:
        tensors: the XLA tensors among it, by name. `forget` drops them.
        host_tensors: the names of those on the host, by their addresses.
        strings: those among it that can be names of attributes.
    """

    def __init__(self, roots: dict[str, Any]) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.host_tensors: dict[int, str] = {}
        self.strings: set[str] = set()
        self._positions: list[tuple[str, Any, Any]] = []  # of what is used up by reading
        self._seen: dict[int, Any] = {}  # alive until `forget`, so that no address comes twice
        self._roots: list[tuple[str, Same, Node]] = []
        self._guard: Any = None
        for name, value in roots.items():
            self.add(name, value)

    def add(self, name: str, value: Any) -> None:
        self._roots.append((name, Same(value), self._node(value, name)))

    def add_globals(self, variables: dict[str, Any], code: types.CodeType, module: str) -> None:
        """Adds what code names of the globals of its module."""
        children = [
            (name, name, self._global(variables[name], f"{module}.{name}", code))
            for name in read_globals(code)
            if name in variables
        ]
        self._roots.append((f"{module}.", Same(variables), Globals(children)))

    def moved(self) -> str | None:
        """The first iterator or random generator on the host that has been used since."""
        for path, value, position in self._positions:
            if _position(value) != position:
                return path
        return None

    def addresses(self) -> set[int]:
        """Of the objects that were found so far, which live until `forget`."""
        return set(self._seen)

    def forget(self, names: Collection[str]) -> None:
        """Keeps what can be compared later: attributes of these names."""
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
        """The name of the first thing that is not what it was."""
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
        if isinstance(value, _PLAIN):
            if isinstance(value, str) and value.isidentifier():
                self.strings.add(value)
            return Plain(value)
        if id(value) in self._seen:
            return Again(value)
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            if value.device.type == "xla":
                self.tensors[path] = value
            else:
                self.host_tensors[id(value)] = path
            return Same(value)
        if isinstance(value, (list, tuple, deque)):
            return Items(
                value,
                [(f"[{i}]", i, self._node(item, f"{path}[{i}]")) for i, item in enumerate(value)],
            )
        if isinstance(value, dict) and not all(isinstance(key, _PLAIN) for key in value):
            return Pairs(
                value,
                [
                    (Same(key), self._node(item, f"{path}[{_short(key)}]"))
                    for key, item in value.items()
                ],
            )
        if isinstance(value, dict):
            return Items(
                value,
                [
                    (f"[{_short(key)}]", key, self._node(item, f"{path}[{_short(key)}]"))
                    for key, item in value.items()
                ],
            )
        if isinstance(value, (set, frozenset)):
            if all(isinstance(i, _PLAIN) for i in value):
                return Plain(type(value)(value))
            return Members(value, {id(i): self._node(i, f"an item of {path}") for i in value})
        if isinstance(value, contextvars.ContextVar):
            return Context(value, self._node(value.get(_ABSENT), path))
        if (position := _position(value)) is not None:
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
                for name in sorted(_methods(value))
                if isinstance(getattr(value, name, None), (types.FunctionType, property))
            ],
        )

    def _global(self, value: Any, path: str, code: types.CodeType) -> Node:
        """A global that `code` names; of a module only the attributes that it names."""
        if not isinstance(value, types.ModuleType):
            return self._node(value, path)
        names = names_of(code)
        if finds_by_strings(code):
            names |= strings_of(code)
        return self._module(value, path, names, _MAX_DEPTH)

    def _module(self, value: types.ModuleType, path: str, names: set[str], depth: int) -> Node:
        """Functions are compared by identity; `add_globals` adds what they read when they run."""
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
        """Objects read its attributes as theirs."""
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
                found = function.__globals__.get(name, _ABSENT)
                if found is not _ABSENT:
                    children.append(
                        (f".{name}", (name,), self._global(found, f"{path}.{name}", code))
                    )
        return Variables(function, children)


class Globals(Children):
    """Of a module."""

    def describe(self) -> Description:
        return (_DICTIONARY, dict, _ANY_SIZE, self.described_children())


class Parts(Children):
    """A bound method or functools.partial: a new object may have the same parts."""

    def get(self, value: Any, key: Any) -> Any:
        return getattr(value, key)

    def describe(self) -> Description:
        return (_PARTS, None, 0, self.described_children())


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in slots if not name.startswith("__"))


def _class_values(kind: type) -> dict[str, Any]:
    """Values among the attributes of a user's class and of those that it is derived from."""
    return {
        name: value
        for base in reversed(kind.__mro__)
        if not is_library(base.__module__)
        for name, value in vars(base).items()
        if not (name.startswith("__") or callable(value) or hasattr(type(value), "__get__"))
    }


def _methods(kind: type) -> set[str]:
    """Those that users' classes define, and `forward` of each module."""
    found = {"forward"} if issubclass(kind, torch.nn.Module) else set()
    for base in kind.__mro__:
        if not is_library(base.__module__):
            found |= {
                name
                for name, value in vars(base).items()
                if not name.startswith("__")
                and (callable(value) or hasattr(type(value), "__get__"))
            }
    return found


def _small_contents(tensor: torch.Tensor) -> bytes | None:
    """Of a tensor on the host; NumPy and .data change them without its version."""
    if tensor.nbytes > _MAX_CONTENTS:
        return None
    try:
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError):  # a sparse tensor, for example
        return None


def _position(value: Any) -> Any:
    """How far an iterator or a generator of random numbers was used; None of anything else."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        if frame is None:
            return "ended"
        values = list(frame.f_locals.values())
        return frame.f_lasti, [
            item if isinstance(item, _PLAIN) else _position(item) for item in values
        ]
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes() if value.device.type == "cpu" else None
    kind = type(value)
    if kind.__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
        return repr(value.bit_generator.state)
    if kind.__module__ == "numpy.random.mtrand" and hasattr(value, "get_state"):
        return repr(value.get_state())
    if kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__"):
        with contextlib.suppress(TypeError, AttributeError):
            return [_part_of_position(part) for part in value.__reduce__()[1:]]
    return None


def _part_of_position(part: Any) -> Any:
    if isinstance(part, tuple):
        return [_part_of_position(item) for item in part]
    if isinstance(part, _PLAIN):
        return part
    return _position(part) or (len(part) if isinstance(part, (list, dict)) else None)


def _short(key: Any) -> str:
    return repr(key) if isinstance(key, (str, int)) else type(key).__name__
