"""Let functions of torch.library.custom_op write to new tensors and to their arguments.

PyTorch functionalizes a program before its operators run, so an operator's own function receives
plain XLA tensors. These have no views: after ``y = torch.zeros_like(x)`` and ``y[:2] = 1``, y was
still zeros. So the function's operations are functionalized, too.

PyTorch refuses to functionalize an operator that writes to its arguments (``mutates_args``), with a
message about aliases of outputs. Here such a function is called with the functional tensors, like
any Python function: its writes reach these tensors and their views. In torch.compile's graphs, the
arguments are copies without views, to which the function writes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._library.utils import mutated_args_kwargs
from torch.utils import _pytree

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

_Function = Callable[..., object]


def register_kernel(original: Callable[..., _Function]) -> Callable[..., _Function]:
    """Replace CustomOpDef.register_kernel, which also registers a new operator's function."""

    @functools.wraps(original)
    def register(
        self: CustomOpDef, device_types: object, fn: _Function | None = None, /
    ) -> _Function:
        def inner(function: _Function) -> _Function:
            original(self, device_types)(_functionalized(function, self))
            return function

        return inner if fn is None else inner(fn)

    return register


def register_to_dispatcher(original: Callable[..., None]) -> Callable[..., None]:
    """Replace CustomOpDef._register_to_dispatcher, which defines a new operator.

    The kernel has a dispatch key above functionalization: a kernel for the key Functionalize would
    keep torch.compile from making writing operators functional, on any device.
    """

    @functools.wraps(original)
    def register(self: CustomOpDef, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        operator = getattr(self, "_opoverload", None)
        if operator is None or not operator._schema.is_mutable:
            return

        def kernel(keys: DispatchKeySet, *args: object, **kwargs: object) -> object:
            torch.autograd.graph.increment_version(_written(operator, args, kwargs))
            with torch._C._AutoDispatchBelowADInplaceOrView():
                if not any(map(_is_lazy, _tensors((args, kwargs)))):
                    below = keys & torch._C._after_ADInplaceOrView_keyset
                    return operator.redispatch(below, *args, **kwargs)
                if {"xla", None} & self._backend_fns.keys():
                    return operator.redispatch(DispatchKeySet(DispatchKey.XLA), *args, **kwargs)
                return _on_host(operator, args, kwargs)

        self._lib.impl(self._name, kernel, "ADInplaceOrView", with_keyset=True, allow_override=True)

    return register


def _written(operator: torch._ops.OpOverload, args: tuple, kwargs: dict) -> list[Tensor]:
    indices, names = mutated_args_kwargs(operator._schema)
    return _tensors([[args[index] for index in indices], [kwargs[name] for name in names]])


def _on_host(operator: torch._ops.OpOverload, args: tuple, kwargs: dict) -> object:
    host = _pytree.tree_map_only(Tensor, Tensor.cpu, (args, kwargs))
    result = operator(*host[0], **host[1])
    for old, new in zip(_written(operator, args, kwargs), _written(operator, *host), strict=True):
        old.copy_(new)
    return _pytree.tree_map_only(Tensor, lambda tensor: tensor.to("xla"), result)


def _functionalized(function: _Function, operator: CustomOpDef) -> _Function:
    @functools.wraps(function)
    def kernel(*args: object, **kwargs: object) -> object:
        if not any(map(_is_of_xla, _tensors((args, kwargs)))):
            return function(*args, **kwargs)
        wrapped = _pytree.tree_map(_wrapped, (args, kwargs))
        included = torch._C._dispatch_tls_local_include_set()
        excluded = torch._C._dispatch_tls_local_exclude_set().remove(DispatchKey.Functionalize)
        with torch._C._ForceDispatchKeyGuard(included, excluded):
            result = function(*wrapped[0], **wrapped[1])
        if operator._opoverload._schema.is_mutable:
            for old, new in zip(_tensors((args, kwargs)), _tensors(wrapped), strict=True):
                if _is_of_xla(old) and (value := _unwrapped(new)) is not old:
                    old.copy_(value)
        return _pytree.tree_map(_unwrapped, result)

    return kernel


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_of_xla(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == "xla"
        and not torch._is_functional_tensor(value)
    )


def _is_lazy(value: Tensor) -> bool:
    """Return whether a value is an XLA tensor with values, not one of torch.compile's traces."""
    if value.device.type != "xla" or not torch._is_functional_tensor(value):
        return False
    return type(torch._from_functional_tensor(value)) is Tensor


def _wrapped(value: object) -> object:
    return torch._to_functional_tensor(value) if _is_of_xla(value) else value


def _unwrapped(value: object) -> object:
    if not isinstance(value, Tensor) or not torch._is_functional_tensor(value):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value)
