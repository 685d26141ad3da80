"""Run the functions of torch_xla's loops once, on placeholders, and refuse unsupported ones.

A loop's program contains its function once. So the function may neither read a value on the host
nor write to a tensor: neither would happen in each iteration.
"""

import contextlib
import dataclasses
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_builder as xb
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

# Methods of torch.Tensor that read values on the host.
_READS = {
    *("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__"),
    *("__complex__", "__repr__", "__format__", "__array__", "__contains__", "is_nonzero"),
}
_INDEXING = ("__getitem__", "__setitem__")
GRADIENT = torch.Tensor.grad.__get__
# Parts of errors that are raised if the value of a placeholder is read.
_NO_VALUE = ("has no value", "buffer != nullptr")
# Normalizations with their arguments; their schemas do not declare the writes to statistics.
_OF_TORCH = ("input", "weight", "bias", "running_mean", "running_var", "training")
_OF_MODULES = ("input", "running_mean", "running_var", "weight", "bias", "training")
_NORMALIZATIONS = {
    torch.batch_norm: _OF_TORCH,
    torch.instance_norm: _OF_TORCH,
    torch.nn.functional.batch_norm: _OF_MODULES,
    torch.nn.functional.instance_norm: _OF_MODULES,
}


@dataclasses.dataclass(frozen=True)
class Traced:
    """The traced operations of a function.

    Attributes:
        leaves: the function's flattened results.
        spec: the results' structure.
        outer: the XLA tensors that the function used besides its arguments.
    """

    leaves: list[Any]
    spec: pytree.TreeSpec
    outer: list[torch.Tensor]


def scalar(_: Callable[..., object]) -> classmethod:
    """Replace torch_xla's Op.scalar, whose tensor torch.set_default_device could move to XLA."""

    def scalar(
        cls: type[xb.Op], builder: object, value: float, dtype: xb.Type | None = None
    ) -> xb.Op:
        dtype = cls.to_torch_type(dtype)
        return cls.constant(builder, torch.tensor(value, dtype=dtype, device="cpu"))

    return classmethod(scalar)


def check_arguments(loop: str, leaves: Sequence[object]) -> None:
    """Raise an error unless all leaves are XLA tensors."""
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(
                f"{loop} takes XLA tensors, got {leaf!r} of type {type(leaf).__name__}: pass "
                f'torch.tensor({leaf!r}, device="xla")'
            )
        if leaf.device.type != "xla":
            raise ValueError(
                f"{loop} takes XLA tensors, got {describe(leaf)} on {leaf.device}: move it with "
                '.to("xla")'
            )


def as_tensors(leaves: Sequence[object]) -> list[Any]:
    """Return the leaves, with tensors in place of Python's numbers."""
    return [
        torch.tensor(leaf, device=torch_xla.device()) if isinstance(leaf, int | float) else leaf
        for leaf in leaves
    ]


def placeholders(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return XLA tensors without values, with the same sizes and dtypes."""
    return [xb.create_placeholder_tensor(tensor.shape, tensor.dtype) for tensor in tensors]


def traced(
    loop: str, function: Callable[..., object], spec: pytree.TreeSpec, inputs: list[torch.Tensor]
) -> Traced:
    """Call a loop's function with placeholders, and return its trace.

    Args:
        loop: the function's name in errors, such as "scan: the function".
        spec: the structure of the function's arguments, whose leaves are `inputs`.

    Raises:
        RuntimeError: the function reads a value, or writes to a tensor.
    """
    watch = _Watch(loop, inputs)
    with watch, on_device_alone(loop):
        results = function(*pytree.tree_unflatten(inputs, spec))
    watch.check_writes()
    leaves, result_spec = pytree.tree_flatten(results)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and torch._is_functional_tensor(leaf):
            torch._sync(leaf)  # what was written through a view of it
    return Traced(leaves, result_spec, watch.outer)


@contextlib.contextmanager
def on_device_alone(loop: str) -> Iterator[None]:
    """Trace in a block, even in eager mode, and explain the error of reading a placeholder.

    A comparison of two traces reads values, which must not compute what is pending in them.
    """
    torch_xla._XLAC._xla_pause_computing_pending_values(True)
    try:
        with torch_xla.experimental.eager_mode_context(False):
            yield
    except RuntimeError as error:
        if not any(text in str(error) for text in _NO_VALUE):
            raise
        raise RuntimeError(
            f"{loop} needs a tensor's value on the host, or runs an operator that torch_xla lacks; "
            "a loop runs only on the device: use another operator, or a loop in Python"
        ) from error
    finally:
        torch_xla._XLAC._xla_pause_computing_pending_values(False)


def check_carried(loop: str, results: Sequence[object], inputs: Sequence[torch.Tensor]) -> None:
    """Raise an error unless the carried tensors keep their number, sizes and dtypes."""
    if len(results) != len(inputs):
        raise ValueError(
            f"{loop} returns {len(results)} carried values for {len(inputs)}: it must return as "
            "many as it receives"
        )
    for number, (result, value) in enumerate(zip(results, inputs, strict=True)):
        if not isinstance(result, torch.Tensor) or result.device.type != "xla":
            raise TypeError(
                f"{loop} returns {result!r} as carried value {number}: it must return XLA tensors"
            )
        if (result.shape, result.dtype) != (value.shape, value.dtype):
            raise ValueError(
                f"{loop} returns {describe(result)} as carried value {number}, which is "
                f"{describe(value)}: sizes and dtypes must stay the same"
            )


def describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


# For the code of each function that has been traced twice, the sizes with which that was done.
_repeatable: weakref.WeakKeyDictionary[types.CodeType, set[object]] = weakref.WeakKeyDictionary()


def check_repeatable(
    loop: str, function: Callable[..., object], key: object, is_same: Callable[[], bool]
) -> None:
    """Raise an error if a function computes something different when it is called again.

    A Python counter or a random number from the host would be the same in each iteration. The check
    is made the first time that a function is seen with `key`.

    Args:
        is_same: traces the function again, and returns whether the trace is the same.
    """
    codes = tuple(_codes_of(function))
    keys = _repeatable.setdefault(codes[0], set()) if codes else set()
    if (codes, key) in keys:
        return
    if not is_same():
        raise RuntimeError(
            f"{loop} computes something different when it is called again, since it depends on "
            "values "
            "in Python that it changes, or on the host's random numbers; a loop is traced only "
            "once: carry these values as tensors, or use a loop in Python"
        )
    keys.add((codes, key))


def _codes_of(function: object, depth: int = 4) -> Iterator[types.CodeType]:
    """Yield the code of a function, and of functions in its closure."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, torch.nn.Module):
        function = function.forward
    function = inspect.unwrap(function) if callable(function) else function
    if (code := getattr(function, "__code__", None)) is None:
        return
    yield code
    for cell in getattr(function, "__closure__", None) or () if depth else ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield from _codes_of(cell.cell_contents, depth - 1)


def all_equal(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(
        one is other
        or (one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other))
        for one, other in zip(ones, others, strict=True)
    )


def refuse_reads(loop: str, name: str, args: tuple, leaves: Sequence[object]) -> None:
    """Raise an error if a method of torch.Tensor reads an XLA tensor's value on the host.

    Args:
        name: the method. args: its arguments. leaves: all leaves of its arguments.
    """
    remedy = "use the tensor itself"
    if name in _INDEXING:
        name, remedy = "an index", "x[i.view(1)] reads x[i] on the device"
        leaves = [
            each
            for index in pytree.tree_leaves(args[1])
            for each in ((index.start, index.stop) if isinstance(index, slice) else (index,))
            if isinstance(each, torch.Tensor) and not each.dim() and each.dtype != torch.bool
        ]
    elif name not in _READS:
        return
    for value in leaves:
        if isinstance(value, torch.Tensor) and value.device.type == "xla":
            raise RuntimeError(
                f"{loop} reads the value of a tensor {describe(value)} on the host, by {name}; a "
                f"loop runs only on the device: {remedy}, or use a loop in Python"
            )


def refuse_statistics(
    func: Callable[..., object],
    args: tuple,
    kwargs: Mapping[str, object],
    refuse_write: Callable[[torch.Tensor], None],
) -> None:
    """Call `refuse_write` with a normalization's running statistics, if the call writes to them."""
    if names := _NORMALIZATIONS.get(func):
        given = dict(zip(names, args, strict=False)) | kwargs
        if given.get("training", given.get("use_input_stats", False)):
            for name in ("running_mean", "running_var"):
                if given.get(name) is not None:
                    refuse_write(given[name])


class _Watch(TorchFunctionMode):
    def __init__(self, loop: str, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.outer: list[torch.Tensor] = []
        self._loop, self._inputs = loop, list(inputs)
        self._versions = {id(tensor): tensor._version for tensor in inputs}
        self._known = {id(tensor): tensor for tensor in inputs}  # alive, so that ids stay theirs

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        leaves = pytree.tree_leaves((args, kwargs))
        refuse_reads(self._loop, name, args, leaves)
        for value in leaves:
            if isinstance(value, torch.Tensor) and value.device.type == "xla":
                self._see(value)
        refuse_statistics(func, args, kwargs, self._refuse_write)
        result = func(*args, **kwargs)
        if func is not GRADIENT:
            for made in pytree.tree_leaves(result):
                if isinstance(made, torch.Tensor):
                    self._known.setdefault(id(made), made)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor
            self._versions[id(tensor)] = tensor._version
            self.outer.append(tensor)

    def check_writes(self) -> None:
        for tensor in (*self._inputs, *self.outer):
            if tensor._version != self._versions[id(tensor)]:
                self._refuse_write(tensor)

    def _refuse_write(self, tensor: torch.Tensor) -> None:
        is_argument = any(tensor is one for one in self._inputs)
        what = "its argument" if is_argument else "a tensor of outside,"
        raise RuntimeError(
            f"{self._loop} writes to {what} {describe(tensor)}; this would happen once, not in "
            "each iteration: carry the tensor, and return its new value"
        )
