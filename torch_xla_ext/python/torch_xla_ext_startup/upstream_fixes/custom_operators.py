"""Functions of torch.library.custom_op may write to views of the tensors that they make.

PyTorch functionalizes a program above its operators, and an operator's own function gets XLA's
tensors. These have no views: after ``y = torch.zeros_like(x)`` and ``y[:2] = 1`` y was zeros. So
what the function does is functionalized, too.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.utils import _pytree

_Function = Callable[..., object]


def register_kernel(original: Callable[..., _Function]) -> Callable[..., _Function]:
    """Replace CustomOpDef.register_kernel, which also registers the function of a new operator."""

    @functools.wraps(original)
    def register(self: object, device_types: object, fn: _Function | None = None, /) -> _Function:
        def inner(function: _Function) -> _Function:
            original(self, device_types)(_functionalized(function))
            return function

        return inner if fn is None else inner(fn)

    return register


def _functionalized(function: _Function) -> _Function:
    @functools.wraps(function)
    def kernel(*args: object, **kwargs: object) -> object:
        if not any(map(_is_of_xla, _pytree.tree_leaves((args, kwargs)))):
            return function(*args, **kwargs)
        args, kwargs = _pytree.tree_map(_wrapped, (args, kwargs))
        included = torch._C._dispatch_tls_local_include_set()
        excluded = torch._C._dispatch_tls_local_exclude_set().remove(DispatchKey.Functionalize)
        with torch._C._ForceDispatchKeyGuard(included, excluded):
            result = function(*args, **kwargs)
        return _pytree.tree_map(_unwrapped, result)

    return kernel


def _is_of_xla(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.device.type == "xla"
        and not torch._is_functional_tensor(value)
    )


def _wrapped(value: object) -> object:
    return torch._to_functional_tensor(value) if _is_of_xla(value) else value


def _unwrapped(value: object) -> object:
    if not isinstance(value, Tensor) or not torch._is_functional_tensor(value):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value)
