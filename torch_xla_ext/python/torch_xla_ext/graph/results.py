"""Take the results of a captured step apart once, and rebuild them at each replay.

Containers that pytree knows are rebuilt by it. Any other object that the step made is taken apart
as copy.copy() does, by its __reduce_ex__: dataclasses, mappings, sets, namespaces, objects of the
user's classes. An object that holds a tensor of the step and cannot be taken apart is refused,
because the replay would return the tensor of the capture.
"""

from __future__ import annotations

import copyreg
import dataclasses
import gc
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xla_ext.graph.errors import CaptureError
from torch_xla_ext.graph.guards import is_plain, same_plain

_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
# Objects that are not taken apart: they only refer to other objects.
_ENDS = (type, types.ModuleType, types.CodeType, torch.Tensor)


@dataclasses.dataclass
class Reference:
    """A tensor that the program does not compute."""

    argument: int | None = None
    tensor: weakref.ref | None = None

    def find(self, arguments: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.tensor() if self.argument is None else arguments[self.argument]


class Result:
    """The plan for one result."""

    def make(self, arguments: Sequence[torch.Tensor], new: list[torch.Tensor]) -> Any:
        raise NotImplementedError

    def difference(self, other: Result, path: str) -> str | None:
        """Describe how `other` differs, or return None; `path` is the result's name."""
        return None if self == other else f"{path} is another tensor"


@dataclasses.dataclass
class Constant(Result):
    """A value without tensors of the step."""

    value: Any

    def make(self, _arguments: Sequence[torch.Tensor], _new: list[torch.Tensor]) -> Any:
        return self.value

    def difference(self, other: Result, path: str) -> str | None:
        one, two = self.value, other.value
        if is_plain(one) or is_plain(two):
            return None if same_plain(one, two) else f"{path} was {one!r} and is {two!r}"
        if type(one) is not type(two):
            return f"{path} was of {type(one).__name__} and is of {type(two).__name__}"
        return None


@dataclasses.dataclass
class Array(Result):
    """A NumPy array or a bytearray, which each caller may modify."""

    value: Any

    def make(self, _arguments: Sequence[torch.Tensor], _new: list[torch.Tensor]) -> Any:
        return self.value.copy()

    def difference(self, other: Result, path: str) -> str | None:
        one, two = self.value, other.value
        shapes = getattr(one, "shape", None), getattr(two, "shape", None)
        if shapes[0] == shapes[1] and bytes(one) == bytes(two):
            return None
        return f"{path} is another array on the host"


@dataclasses.dataclass
class SameTensor(Result):
    """A result that is a passed tensor itself."""

    reference: Reference

    def make(self, arguments: Sequence[torch.Tensor], _new: list[torch.Tensor]) -> torch.Tensor:
        return self.reference.find(arguments)


@dataclasses.dataclass
class New(Result):
    """A result of the program."""

    number: int

    def make(self, _arguments: Sequence[torch.Tensor], new: list[torch.Tensor]) -> torch.Tensor:
        return new[self.number]


@dataclasses.dataclass
class View(Result):
    """Another tensor on the storage of an argument or of a result."""

    root: SameTensor | New
    view: Callable[[torch.Tensor], torch.Tensor] = dataclasses.field(compare=False)
    location: tuple  # of its elements in the storage

    def make(self, arguments: Sequence[torch.Tensor], new: list[torch.Tensor]) -> torch.Tensor:
        return self.view(self.root.make(arguments, new))


@dataclasses.dataclass
class Tree(Result):
    """A container that pytree knows."""

    spec: pytree.TreeSpec
    leaves: list[Result]

    def make(self, arguments: Sequence[torch.Tensor], new: list[torch.Tensor]) -> Any:
        return pytree.tree_unflatten([leaf.make(arguments, new) for leaf in self.leaves], self.spec)

    def difference(self, other: Result, path: str) -> str | None:
        if self.spec != other.spec:
            return f"the structure of {path} changed"
        return _first_difference(self.leaves, other.leaves, path)


@dataclasses.dataclass
class Object(Result):
    """An object that is rebuilt from the parts that its __reduce_ex__ returns."""

    function: Callable[..., Any]
    arguments: Result
    state: Result | None
    items: Result | None
    pairs: Result | None
    setter: Callable[[Any, Any], None] | None
    original: Callable[[], Any]  # the one that the trace returned

    def make(self, arguments: Sequence[torch.Tensor], new: list[torch.Tensor]) -> Any:
        value = self.function(*self.arguments.make(arguments, new))
        if self.state is not None:
            self._set_state(value, self.state.make(arguments, new))
        if self.items is not None:
            for item in self.items.make(arguments, new):
                value.append(item)
        if self.pairs is not None:
            for key, item in self.pairs.make(arguments, new):
                value[key] = item
        return value

    def _set_state(self, value: Any, state: Any) -> None:
        if self.setter is not None:
            self.setter(value, state)
        elif hasattr(value, "__setstate__"):
            value.__setstate__(state)
        else:
            attributes, slots = state if _has_slots(state) else (state, None)
            if attributes:
                value.__dict__.update(attributes)
            for name, item in (slots or {}).items():
                object.__setattr__(value, name, item)

    def difference(self, other: Result, path: str) -> str | None:
        if self.function is not other.function:
            return f"{path} is another object"
        original = self.original()
        if original is not None and original is other.original():
            return f"{path} is an object that two calls share, with results of its own in it"
        mine = (self.arguments, self.state, self.items, self.pairs)
        return _first_difference(
            mine, (other.arguments, other.state, other.items, other.pairs), path
        )


def _has_slots(state: Any) -> bool:
    return isinstance(state, tuple) and len(state) == 2


def difference(one: Result | None, other: Result | None, path: str) -> str | None:
    if one is None and other is None:
        return None
    if type(one) is not type(other):
        return f"{path} is made in another way"
    return one.difference(other, path)


def _first_difference(
    mine: Iterable[Result | None], others: Iterable[Result | None], path: str
) -> str | None:
    for number, (one, other) in enumerate(zip(mine, others, strict=True)):
        found = difference(one, other, f"{path}[{number}]")
        if found:
            return found
    return None


class Planner:
    """Takes results apart into plans.

    Args:
        is_result: returns whether a tensor is an argument of the step or was made by it.
        existing: the addresses of objects that existed before the step, which are returned
            unchanged. None if they are unknown; then objects without results are returned
            unchanged.

    Attributes:
        tensors: the tensors among the results. Their entries in `plans` are to be filled in
            before `finish`.
    """

    def __init__(
        self, is_result: Callable[[torch.Tensor], bool], existing: set[int] | None
    ) -> None:
        self._is_result, self._existing = is_result, existing
        self.tensors: dict[int, torch.Tensor] = {}
        self._open: set[int] = set()  # objects that are being taken apart
        self._kept: list[Any] = []  # parts that __reduce_ex__ made, by their addresses

    def take_apart(self, outputs: Any) -> Any:
        """Return the plan for `outputs`, with tensors in place of their plans, until `finish`."""
        return self._tree(outputs, "the result")

    def finish(self, plan: Any, plans: dict[int, Result]) -> Result:
        """Return `plan` with the tensors replaced by their plans."""
        if isinstance(plan, torch.Tensor):
            return plans[id(plan)]
        if isinstance(plan, Tree):
            plan.leaves = [self.finish(leaf, plans) for leaf in plan.leaves]
        elif isinstance(plan, Object):
            for name in ("arguments", "state", "items", "pairs"):
                setattr(plan, name, self.finish(getattr(plan, name), plans))
        return plan

    def _tree(self, value: Any, path: str) -> Any:
        leaves, spec = pytree.tree_flatten(value)
        if any(isinstance(key, torch.Tensor) for key in _keys(spec)):
            raise CaptureError(f"{path} has tensors as keys of a dictionary: return them as values")
        if len(leaves) == 1 and leaves[0] is value:
            return self._leaf(value, path)
        return Tree(spec, [self._leaf(leaf, f"{path}[{i}]") for i, leaf in enumerate(leaves)])

    def _leaf(self, value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            self.tensors[id(value)] = value
            return value
        if is_plain(value) or isinstance(value, (type, types.ModuleType, torch.Size)):
            return Constant(value)
        if isinstance(value, bytearray) or (
            type(value).__name__ == "ndarray" and not value.dtype.hasobject
        ):
            return Array(value.copy())
        if isinstance(value, _GENERATORS):
            raise CaptureError(
                f"{path} is a {type(value).__name__}, which would run after the step: return a list"
            )
        found = next((tensor for tensor in tensors_in(value) if self._is_result(tensor)), None)
        there_before = self._existing is None or id(value) in self._existing
        if found is None and (there_before or isinstance(value, _FUNCTIONS)):
            return Constant(value)
        if there_before and self._existing is not None:
            self._refuse(value, path, found, "was there before the step")
        if isinstance(value, _FUNCTIONS):
            self._refuse(value, path, found, "cannot be made again")
        if id(value) in self._open:
            self._refuse(value, path, found, "refers to itself")
        self._open.add(id(value))
        try:
            return self._object(value, path)
        except CaptureError:
            raise
        except Exception as error:
            if found is None:
                return Constant(value)
            self._refuse(value, path, found, f"cannot be made again: {error}")
        finally:
            self._open.discard(id(value))

    def _object(self, value: Any, path: str) -> Any:
        reduced = value.__reduce_ex__(4)
        if isinstance(reduced, str):  # the name of a global
            return Constant(value)
        function, arguments, state, items, pairs, setter = (*reduced, *[None] * 4)[:6]
        if state is not None and not _has_slots(state) and not isinstance(state, dict):
            _ = value.__setstate__  # otherwise it cannot be rebuilt
        if not (arguments[1:] or state or items or pairs) and function is copyreg.__newobj__:
            return Constant(value)  # such as object(), which is compared by identity
        parts = [
            arguments,
            state,
            *(None if part is None else list(part) for part in (items, pairs)),
        ]
        self._kept.append(parts)
        try:
            original: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            original = _nothing
        return Object(
            function,
            *(None if part is None else self._tree(part, path) for part in parts),
            setter,
            original,
        )

    @staticmethod
    def _refuse(value: Any, path: str, tensor: torch.Tensor | None, reason: str) -> None:
        holds = "" if tensor is None else f" holds a tensor {_short(tensor)} of the step, and it"
        raise CaptureError(
            f"{path}, an object of {type(value).__qualname__},{holds} {reason}: return the tensors "
            "in a tuple, a dictionary or a dataclass"
        )


def _keys(spec: pytree.TreeSpec) -> Iterator[Any]:
    if isinstance(spec.context, list):
        yield from spec.context
    for child in spec.children_specs:
        yield from _keys(child)


def _nothing() -> None:
    return None


def _short(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that can be reached from an object."""
    seen, left = {id(value)}, [value]
    while left:
        for item in _referents(left.pop()):
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, torch.Tensor):
                yield item
            elif not isinstance(item, _ENDS):
                left.append(item)


def _referents(value: Any) -> list[Any]:
    if type(value).__name__ == "ndarray" and value.dtype.hasobject:
        return list(value.flat)
    if not isinstance(value, types.FunctionType):
        return gc.get_referents(value)
    cells = [cell for cell in value.__closure__ or () if cell != types.CellType()]
    return [*cells, value.__defaults__, value.__kwdefaults__, value.__dict__]
