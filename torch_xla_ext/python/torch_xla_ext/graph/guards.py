"""Guards: record Python values and check that they are unchanged; python_state.py finds them."""

import collections
import contextvars
import enum
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch

PLAIN = (
    *(int, float, complex, str, bytes, bool, type(None), type(Ellipsis), range, slice, enum.Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
ABSENT = object()
ON_THE_HOST = "a tensor on the host"
_MAX_CONTENTS = 1 << 16  # bytes of a host tensor that are compared at each call
# Globals of these modules are not compared: users do not assign them, and the modules themselves
# assign only caches, such as sysconfig's variables and Triton's compiled kernels.
_LIBRARIES = {
    *("torch", "torch_xla", "torch_xla_ext", "torch_xla_ext_startup", "torch_xla_huggingface"),
    *("numpy", "triton"),
    *sys.stdlib_module_names,
}


@functools.cache
def is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


# csrc/graph/python_guard.cc's Node::Kind.
_PLAIN_NODE, _SAME, _ADDRESS, _SEQUENCE, _DICTIONARY = range(5)
_ATTRIBUTES, _FUNCTION, _PARTS, _CALL, _ABSENT_NODE, _PAIRS = range(5, 11)
_ANY_SIZE = 2**64 - 1
Description = tuple[int, Any, int, list]


class Node:
    """A recorded value. `difference` returns where a given value differs from it, or None."""

    def describe(self) -> Description:
        """Return kind, object, number and children of the guard in csrc/graph/python_guard.cc."""
        return (_CALL, lambda value: self.difference(value, "?") is None, 0, [])

    def difference(self, value: Any, path: str) -> str | None:
        raise NotImplementedError

    def restrict(self, names: Collection[str]) -> None:
        """Keep only the attributes of objects and variables of functions that have these names."""


def is_plain(value: Any) -> bool:
    """Return whether a value is compared by equality, and may be kept alive."""
    return isinstance(value, PLAIN)


def same_plain(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)  # 0.0 and -0.0 differ, and nan equals nan
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
    """An object, compared by identity; a host tensor's values are compared, too."""

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
    """A context variable, with its value when the function is called."""

    def __init__(self, value: contextvars.ContextVar, node: Node) -> None:
        self.identity, self.node = Same(value), node

    def difference(self, value: Any, path: str) -> str | None:
        found = self.identity.difference(value, path)
        return found or self.node.difference(value.get(ABSENT), path)

    def restrict(self, names: Collection[str]) -> None:
        self.node.restrict(names)


class Members(Node):
    """A guard for a set of objects."""

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
    """An attribute that an object inherits from its class, and lacks in its own dictionary."""

    def difference(self, value: Any, path: str) -> str | None:
        return None if value is ABSENT else path

    def describe(self) -> Description:
        return (_ABSENT_NODE, None, 0, [])


class Again(Node):
    """A reference to a value that is already recorded and compared under another name."""

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
        self.is_ordered = isinstance(value, collections.OrderedDict) and len(value) > 1

    def difference(self, value: Any, path: str) -> str | None:
        if len(value) != len(self.pairs):
            return path
        for (key, item), (key_node, item_node) in zip(value.items(), self.pairs, strict=True):
            where = f"{path}[{short_key(key)}]"
            found = key_node.difference(key, where) or item_node.difference(item, where)
            if found:
                return found
        return None

    def restrict(self, names: Collection[str]) -> None:
        for _, item in self.pairs:
            item.restrict(names)

    def describe(self) -> Description:
        if self.is_ordered:
            return super().describe()  # C++ cannot see the order of an OrderedDict
        nodes = itertools.chain.from_iterable(self.pairs)
        return (_PAIRS, None, len(self.pairs), [(None, node.describe()) for node in nodes])


class Children(Node):
    """Values that are found in another value by keys."""

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
    """A list, tuple, set or dictionary, compared element by element."""

    def __init__(self, value: Any, children: list[tuple[str, Any, Node]]) -> None:
        super().__init__(children)
        self.type, self.size = type(value), len(value)
        self.keys = [key for _, key, _ in children]

    def get(self, value: Any, key: Any) -> Any:
        return value.get(key, ABSENT) if isinstance(value, dict) else value[key]

    def difference(self, value: Any, path: str) -> str | None:
        if type(value) is not self.type or len(value) != self.size:
            return path
        if isinstance(value, dict) and list(value) != self.keys:
            return f"the order of {path}"
        return super().difference(value, path)

    def describe(self) -> Description:
        if issubclass(self.type, collections.OrderedDict) and self.size > 1:
            return super().describe()  # C++ cannot see the order of an OrderedDict
        if issubclass(self.type, dict):
            return (_DICTIONARY, self.type, self.size, self.described_children())
        if issubclass(self.type, (list, tuple)):
            return (_SEQUENCE, self.type, self.size, self.described_children())
        return super().describe()


class Attributes(Children):
    """An object with its own attributes."""

    def __init__(self, value: Any, children: list[tuple[str, Any, Node]]) -> None:
        super().__init__(children)
        self.identity = Same(value)
        self.type = id(type(value))
        self.has_dict = hasattr(value, "__dict__")
        # A user's object: a first call may add attributes that later calls use.
        self.names: set[str] | None = None
        if self.has_dict and not is_library(type(value).__module__):
            self.names = set(vars(value))
        # Attributes of the class that a later attribute of the object would hide.
        self.methods = methods_of(type(value)) if self.has_dict else set()

    def get(self, value: Any, key: Any) -> Any:
        own = getattr(value, "__dict__", None)
        return own.get(key, ABSENT) if own is not None else getattr(value, key, ABSENT)

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
    """A class with the values among its own and inherited attributes."""

    def get(self, value: Any, key: Any) -> Any:
        return getattr(value, key, ABSENT)

    def describe(self) -> Description:
        return (_FUNCTION, self.identity.object, 0, self.described_children())


class Variables(Children):
    """A function, with its closure, defaults, and the globals that its code names."""

    def __init__(self, value: Any, children: list[tuple[str, Any, Node]]) -> None:
        super().__init__(children)
        self.identity = Same(value)

    def get(self, value: Any, key: Any) -> Any:
        """Return a cell by its index, a global by a tuple with its name, or an attribute."""
        if isinstance(key, int):
            return value.__closure__[key].cell_contents
        return value.__globals__[key[0]] if isinstance(key, tuple) else getattr(value, key)

    def difference(self, value: Any, path: str) -> str | None:
        return self.identity.difference(value, path) or super().difference(value, path)

    def describe(self) -> Description:
        return (_FUNCTION, self.identity.object, 0, self.described_children())


class Globals(Children):
    """The globals of a module."""

    def describe(self) -> Description:
        return (_DICTIONARY, dict, _ANY_SIZE, self.described_children())


class Parts(Children):
    """A bound method or functools.partial: a new object may have the same parts."""

    def get(self, value: Any, key: Any) -> Any:
        return getattr(value, key)

    def describe(self) -> Description:
        return (_PARTS, None, 0, self.described_children())


def methods_of(kind: type) -> set[str]:
    """Return the methods that users' classes define, and each module's `forward`."""
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
    """Return a small host tensor's contents, which NumPy and .data change without a new version."""
    if tensor.nbytes > _MAX_CONTENTS:
        return None
    try:
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError):  # a sparse tensor, for example
        return None


def short_key(key: Any) -> str:
    return repr(key) if isinstance(key, (str, int)) else type(key).__name__
