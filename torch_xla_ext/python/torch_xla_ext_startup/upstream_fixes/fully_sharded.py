"""Fix XlaFullyShardedDataParallel: the dtype of its parameters, and weights of two modules.

With compute_dtype=torch.bfloat16, a parameter receives a tensor of bfloat16, but still reported
float32. Operators with a bias, and products, then saw operands of two dtypes.

If two wrapped modules have the same weight, each shards it. With flatten_parameters=True, each then
trained a weight of its own; otherwise, the backward pass failed.
"""

import functools
import weakref
from collections.abc import Callable

import torch
from torch.utils.weak import WeakIdKeyDictionary

# The module that has each parameter, and a description; the module is gone if wrapping it failed.
_wrapped = WeakIdKeyDictionary()


def replace_xla_tensor(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Replace _replace_xla_tensor, which only that class calls."""

    @functools.wraps(original)
    def replace(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == source.dtype:
            return original(tensor, source)
        tensor.data = source.detach()
        return tensor

    return replace


def initialize(original: Callable[..., None]) -> Callable[..., None]:
    """Replace the constructor of the module that XlaFullyShardedDataParallel makes of its own."""

    @functools.wraps(original)
    def initialize(
        self: torch.nn.Module, module: torch.nn.Module, *args: object, **kw: object
    ) -> None:
        for name, parameter in module.named_parameters():
            if hasattr(parameter, "_is_sharded"):  # by a module inside
                continue
            other, text = _wrapped.get(parameter, (lambda: None, ""))
            if other() is not None:
                raise RuntimeError(
                    f"XlaFullyShardedDataParallel: {type(module).__name__} has a parameter "
                    f"{name!r} that another wrapped module has, too: {text}. Each would train a "
                    "copy. Wrap a module that contains both, and neither of the two"
                )
            _wrapped[parameter] = weakref.ref(self), f"{name!r} of {type(module).__name__}"
        original(self, module, *args, **kw)

    return initialize
