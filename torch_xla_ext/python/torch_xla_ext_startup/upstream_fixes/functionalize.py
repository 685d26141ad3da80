"""Make torch.func.functionalize work for functions of XLA tensors.

XLA tensors are functionalized already, and PyTorch's transform fails an assertion when it wraps
them again. A function of XLA tensors has the same results and writes with and without the
transform, so it is called directly. make_fx, the transform's main use, is refused.
"""

import functools
from collections.abc import Callable

import torch
from torch.utils import _pytree


def _is_xla(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def functionalize(original: Callable[..., Callable]) -> Callable[..., Callable]:
    """Replace torch.func.functionalize."""

    @functools.wraps(original)
    def functionalize(func: Callable, *, remove: str = "mutations") -> Callable:
        of_others = original(func, remove=remove)

        @functools.wraps(func)
        def wrapped(*args: object, **options: object) -> object:
            if not any(map(_is_xla, _pytree.tree_leaves((args, options)))):
                return of_others(*args, **options)
            from torch.fx.experimental.proxy_tensor import get_proxy_mode

            if get_proxy_mode() is not None:
                raise RuntimeError(
                    "make_fx(functionalize(f)) cannot trace XLA tensors, which are functionalized "
                    'already: trace it with tensors on "cpu" or "meta" of the same shapes, and '
                    "call the graph with XLA tensors"
                )
            return func(*args, **options)

        return wrapped

    return functionalize
