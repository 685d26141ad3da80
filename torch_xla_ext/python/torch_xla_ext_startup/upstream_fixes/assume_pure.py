"""Run a function undecorated if assume_pure would trace it wrongly.

torch_xla.experimental.assume_pure traces a function with JAX once per shape, which only saves
tracing time. Here JAX has no 64-bit numbers, does not see XLA tensors that the function closes
over, and loses writes to its arguments. A function that depends on any of these runs undecorated,
with a warning, and is traced by torch_xla on every call.
"""

import functools
import warnings
from collections.abc import Callable

import torch
from torch.utils import _pytree

_WIDE = (torch.int64, torch.uint64, torch.float64, torch.complex128)


# The structure of a function's results, and which of them are not None.
_Structure = tuple[_pytree.TreeSpec, list[bool]]


class _WritesError(Exception):
    """The traced function writes to an argument."""


def assume_pure(original: Callable[[Callable], Callable]) -> Callable[[Callable], Callable]:
    """Replace torch_xla.experimental.assume_pure.assume_pure."""

    @functools.wraps(original)
    def assume_pure(fn: Callable) -> Callable:
        traced = _with_gradients_of_all_results(original, _refusing_writes(fn))
        reasons: dict[object, str | None] = {}

        @functools.wraps(fn)
        def pure(*args: object, **kwargs: object) -> object:
            leaves, structure = _pytree.tree_flatten((args, kwargs))
            if any(isinstance(x, torch.Tensor) and x.device.type == "jax" for x in leaves):
                return traced(*args, **kwargs)  # inside another one's trace
            key = (structure, *map(_signature, leaves))
            if key not in reasons:
                reasons[key] = _argument_reason(leaves)
                if reasons[key] is None:
                    return first_call(key, args, kwargs)
                _warn(reasons[key])
            return traced(*args, **kwargs) if reasons[key] is None else fn(*args, **kwargs)

        def first_call(key: object, args: tuple, kwargs: dict[str, object]) -> object:
            reason = None
            try:
                result = traced(*args, **kwargs)
            except _WritesError:
                reason = "it writes to an argument"
            except Exception as error:
                reason = f"JAX cannot trace it ({type(error).__name__}: {error})"
            else:
                reason = _result_reason(result, fn, args, kwargs)
            if reason is not None:
                result = fn(*args, **kwargs)  # raises its own error, if it has one
                _warn(reason)
            reasons[key] = reason
            return result

        return pure

    return assume_pure


def _with_gradients_of_all_results(
    original: Callable[[Callable], Callable], fn: Callable
) -> Callable:
    """Return the traced function, with gradients for results of any structure.

    Upstream's function returns gradients only for a flat tuple of tensors.
    """
    structures: list[_Structure] = []  # of the results that were traced
    known: dict[object, _Structure] = {}

    @functools.wraps(fn)
    def flat(*args: object, **kwargs: object) -> object:
        leaves, structure = _pytree.tree_flatten(fn(*args, **kwargs))
        structures.append((structure, [leaf is not None for leaf in leaves]))
        values = tuple(leaf for leaf in leaves if leaf is not None)
        return values[0] if len(values) == 1 else values

    traced = original(flat)

    @functools.wraps(fn)
    def function(*args: object, **kwargs: object) -> object:
        leaves, structure = _pytree.tree_flatten((args, kwargs))
        key = (structure, *map(_signature, leaves))
        structures.clear()
        results = traced(*args, **kwargs)
        if structures:
            known[key] = structures[-1]
        structure, has_value = known[key]
        values = iter(results if isinstance(results, tuple) else (results,))
        leaves = [next(values) if has else None for has in has_value]
        return _pytree.tree_unflatten(leaves, structure)

    return function


def _warn(reason: str) -> None:
    text = f"assume_pure: the function is traced at each call, because {reason}"
    warnings.warn(text, stacklevel=3)


def _signature(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.shape, leaf.device
    return type(leaf), repr(leaf)


def _argument_reason(leaves: list[object]) -> str | None:
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "xla":
            return f"an argument is on {leaf.device}"
        if isinstance(leaf, torch.Tensor) and leaf.dtype in _WIDE:
            return f"an argument is of {leaf.dtype}"
    return None


def _result_reason(
    result: object, fn: Callable, args: tuple, kwargs: dict[str, object]
) -> str | None:
    """Return why a result is unusable: it has 32-bit numbers where PyTorch has 64-bit ones."""
    narrow = (torch.int32, torch.complex64)
    if not any(getattr(leaf, "dtype", None) in narrow for leaf in _pytree.tree_leaves(result)):
        return None
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(leaf: object) -> object:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        with mode:
            return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")

    fake_args, fake_kwargs = _pytree.tree_map(fake, (args, kwargs))
    try:
        with mode:
            results = _pytree.tree_leaves(fn(*fake_args, **fake_kwargs))
    except Exception:  # such as tensors of a closure, which are on another device
        return None
    wide = [x.dtype for x in results if isinstance(x, torch.Tensor) and x.dtype in _WIDE]
    return f"a result is of {wide[0]}" if wide else None


def _refusing_writes(fn: Callable) -> Callable:
    @functools.wraps(fn)
    def function(*args: object, **kwargs: object) -> object:
        tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if hasattr(leaf, "_elem")]
        before = [tensor._elem for tensor in tensors]
        result = fn(*args, **kwargs)
        if any(tensor._elem is not old for tensor, old in zip(tensors, before, strict=True)):
            raise _WritesError
        return result

    return function
