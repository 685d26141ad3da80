"""Keys that select a replay, from the arguments and torch's modes; guards check the rest."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import weakref
from typing import Any

import torch
import torch_xla
from torch.utils import _pytree as pytree

from torch_xla_ext.graph.guards import is_plain, same_plain
from torch_xla_ext.graph.tensors import Description, argument_names

_XLAC = torch_xla._XLAC
# Dictionaries of global hooks, by their handles.
_GLOBAL_HOOKS = [
    value
    for name, value in vars(torch.nn.modules.module).items()
    if name.startswith("_global_") and name.endswith("_hooks")
]


# Types that pytree, too, treats as leaves.
_LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)})


@functools.cache
def _flat_spec(num_arguments: int) -> pytree.TreeSpec:
    return pytree.tree_structure(((0,) * num_arguments, {}))


def flatten(args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """Return pytree.tree_flatten((args, kwargs)), faster for simple arguments."""
    if not kwargs and _LEAVES.issuperset(map(type, args)):
        return list(args), _flat_spec(len(args))
    return pytree.tree_flatten((args, kwargs))


@dataclasses.dataclass
class Key:
    """The key that selects a replay; it does not cover Python state."""

    spec: pytree.TreeSpec
    others: dict[int, Any]  # leaves that are not tensors, by their index
    tensors: list[torch.Tensor] | list[Description]  # filled in once there is a replay
    signature: bytes
    shardings: list[str]
    modes: tuple

    def difference(self, other: Key) -> str | None:
        if self.spec is not other.spec and self.spec != other.spec:
            return "the structure of the arguments changed"
        if self.others.keys() != other.others.keys():
            return "an argument is a tensor in one call and none in another"
        for number, known in self.others.items():
            if not _same(known, other.others[number]):
                name, values = argument_names(self.spec)[number], (known, other.others[number])
                return f"{name} changed from {' to '.join(map(_shown, values))}"
        if self.signature != other.signature:
            if (changed := self.changed_tensor(other)) is None:
                return "the memory that arguments share changed"
            return "{} changed from {} to {}".format(*changed)
        if self.shardings != other.shardings:
            return "the sharding of an argument changed"
        if self.modes != other.modes:
            return (
                "gradient mode, autocast, the default dtype or device, deterministic algorithms, "
                "hooks of all modules, or a TorchFunctionMode changed"
            )
        return None

    def changed_tensor(self, other: Key) -> tuple[str, Description, Description] | None:
        """Return the first tensor whose description differs, if everything else is equal."""
        names = argument_names(self.spec)
        tensors = [name for number, name in enumerate(names) if number not in self.others]
        for name, was, tensor in zip(tensors, self.tensors, other.tensors, strict=True):
            now = Description.of(tensor)
            if now != was:
                notes = {} if now.notes != was.notes else {"notes": ""}
                return name, was._replace(**notes), now._replace(**notes)
        return None


def modes() -> tuple:
    """Return torch's modes that operations depend on, except the seed."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("xla"),
        torch.get_autocast_dtype("xla"),
        torch.get_default_dtype(),
        _XLAC._xla_precision_settings(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._len_torch_dispatch_stack(),
        _function_modes() if torch._C._len_torch_function_stack() else None,
        [[*hooks] for hooks in _GLOBAL_HOOKS if hooks],
    )


def _function_modes() -> list[Any]:
    modes = torch.overrides._get_current_function_mode_stack()
    return [getattr(mode, "device", None) or weakref.ref(mode) for mode in modes]


def _same(one: Any, other: Any) -> bool:
    one = one() if isinstance(one, weakref.ref) else one
    return one is other or (is_plain(other) and same_plain(one, other))


def _shown(value: Any) -> str:
    value = value() if isinstance(value, weakref.ref) else value
    return reprlib.repr(value) if is_plain(value) else f"an object of {type(value).__name__}"


def weakly(value: Any) -> Any:
    if is_plain(value):
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return value
