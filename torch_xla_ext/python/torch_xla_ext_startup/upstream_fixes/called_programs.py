"""Fix torch_xla's cache of programs that come from JAX functions or XLA operations.

For each function, torch_xla keeps only the last program's structure of results, and assume_pure
wraps all functions in one. So results and gradients could have the structure of another function's
program. The arguments 1, 1.0 and True shared a cache key. And JAX's own cache confuses functions if
something, such as an exception, keeps the traced method alive.
"""

import functools
from collections.abc import Callable


def call(_original: Callable[..., object]) -> Callable[..., object]:
    """Replace torch_xla.core.xla_builder.CompiledCallableWithCache.__call__."""
    return _call


def _call(self: object, *args: object, **kwargs: object) -> object:
    function = self._flat_input_func
    tensors = function.preprocess(args, kwargs)
    key = (
        tuple(tensor if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors),
        tuple(map(_distinct, function.non_tensors)),
        function.in_spec,
    )
    if key not in self._cache:
        function.flat_call = functools.partial(type(function).flat_call, function)
        try:
            self._cache[key] = self.specialize(tensors), function.out_spec
        finally:
            del function.flat_call
    run, function.out_spec = self._cache[key]
    return function.postprocess(run(tensors))


def _distinct(value: object) -> object:
    number = repr(value) if isinstance(value, int | float | complex) else value
    return type(value), number
