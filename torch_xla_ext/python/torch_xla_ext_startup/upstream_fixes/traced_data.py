"""Make make_fx trace ``x.data`` of an XLA tensor as ``x.detach()``.

PyTorch's wrapper of XLA tensors copies itself without calling an operator, so the tracer took
``x.data`` for a constant: the graph ignored its argument, and writes to it were lost.
"""

import functools
from collections.abc import Callable

import torch

_GET = torch.Tensor.data.__get__
_SET = torch.Tensor.data.__set__


def trace_data(original: Callable[..., object]) -> Callable[..., object]:
    """Replace the function that make_fx's mode calls for each function of PyTorch."""

    @functools.wraps(original)
    def call(
        self: object,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if func in (_GET, _SET) and torch._is_functional_tensor(args[0]) and args[0].is_xla:
            if func == _SET:
                raise RuntimeError(
                    "make_fx cannot trace an assignment to `x.data`: the graph would not have it. "
                    "Call x.copy_(value), or return the value"
                )
            func = torch.Tensor.detach
        return original(self, func, types, args, kwargs)

    return call
