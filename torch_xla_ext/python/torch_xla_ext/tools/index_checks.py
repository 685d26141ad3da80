"""Raise errors for out-of-range indices, which XLA clamps or ignores silently."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class _Use:
    """One tensor of indices, and the dimension that they index."""

    index: object
    dim: int
    size: int
    may_be_negative: bool = False  # and counts from the end, then
    ignored: int | None = None  # a value that is not an index


class _Arguments:
    """The arguments of a call, each given by position or by name."""

    def __init__(self, args: Sequence[object], kwargs: dict[str, object]) -> None:
        self._args, self._kwargs = args, kwargs

    def get(self, place: int, *names: str, otherwise: object = None) -> object:
        if place < len(self._args):
            return self._args[place]
        return next((self._kwargs[name] for name in names if name in self._kwargs), otherwise)


def _along_dim(arguments: _Arguments) -> Iterator[_Use]:
    tensor, dim = arguments.get(0, "input", "self"), arguments.get(1, "dim")
    if isinstance(tensor, torch.Tensor) and isinstance(dim, int):
        size = tensor.shape[dim] if tensor.ndim else 1
        yield _Use(arguments.get(2, "index"), dim % max(tensor.ndim, 1), size)


def _along_dim_of_indices(arguments: _Arguments) -> Iterator[_Use]:
    """Yield the indices of take_along_dim, which may be negative or have no dimension."""
    tensor, index = arguments.get(0, "input", "self"), arguments.get(1, "indices")
    dim = arguments.get(2, "dim")
    if isinstance(dim, int):
        yield _Use(index, dim % tensor.ndim, tensor.shape[dim])
    else:
        yield _Use(index, 0, tensor.numel())


def _rows(table: int, names: tuple[str, ...], index: int, of: tuple[str, ...]) -> Callable:
    def uses(arguments: _Arguments) -> Iterator[_Use]:
        yield _Use(arguments.get(index, *of), 0, arguments.get(table, *names).shape[0])

    return uses


def _flat(arguments: _Arguments) -> Iterator[_Use]:
    tensor = arguments.get(0, "input", "self")
    yield _Use(arguments.get(1, "index"), 0, tensor.numel(), may_be_negative=True)


def _classes(arguments: _Arguments) -> Iterator[_Use]:
    scores, target = arguments.get(0, "input"), arguments.get(1, "target")
    ignored = arguments.get(4, "ignore_index", otherwise=-100)
    if not target.is_floating_point():  # as probabilities are
        dim = 0 if scores.ndim == 1 else 1
        yield _Use(target, dim, scores.shape[dim], ignored=ignored)


def _one_hot(arguments: _Arguments) -> Iterator[_Use]:
    x, size = arguments.get(0, "input", "self"), arguments.get(1, "num_classes", otherwise=-1)
    if size != -1:  # which stands for one more than the largest class
        yield _Use(x, x.ndim, size)


def _subscript(arguments: _Arguments) -> Iterator[_Use]:
    """Yield the indices in the brackets of `x[...]`, or in index_put's list."""
    tensor, subscript = arguments.get(0, "self", "input"), arguments.get(1, "indices")
    items = list(subscript) if isinstance(subscript, tuple | list) else [subscript]
    dim = 0
    for place, item in enumerate(items):
        if item is Ellipsis:
            dim = tensor.ndim - sum(_dims_of(other) for other in items[place + 1 :])
            continue
        if _dims_of(item) == 1 and not _is_mask(item) and dim < tensor.ndim:
            yield _Use(item, dim, tensor.shape[dim], may_be_negative=True)
        dim += _dims_of(item)


def _sources(arguments: _Arguments) -> Iterator[_Use]:
    """Yield the indices of the elements that masked_scatter reads."""
    tensor, mask = arguments.get(0, "input", "self"), arguments.get(1, "mask")
    selected = int(mask.broadcast_to(torch.broadcast_shapes(tensor.shape, mask.shape)).sum())
    index = torch.arange(selected, device=mask.device)
    yield _Use(index, 0, arguments.get(2, "source").numel())


def _is_mask(item: object) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)


def _dims_of(item: object) -> int:
    """Return the number of dimensions that an element of a subscript indexes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if _is_mask(item) else 1


def _functions() -> Iterator[tuple[Callable, Callable[[_Arguments], Iterator[_Use]]]]:
    named = {
        "gather": _along_dim,
        "index_add": _along_dim,
        "index_copy": _along_dim,
        "index_fill": _along_dim,
        "index_put": _subscript,
        "index_reduce": _along_dim,
        "index_select": _along_dim,
        "masked_scatter": _sources,
        "put": _flat,
        "scatter": _along_dim,
        "scatter_add": _along_dim,
        "scatter_reduce": _along_dim,
        "take": _flat,
        "take_along_dim": _along_dim_of_indices,
    }
    for name, uses in named.items():
        for owner in (torch, torch.Tensor):
            for function in (getattr(owner, name, None), getattr(owner, f"{name}_", None)):
                if function is not None:
                    yield function, uses
    yield torch.Tensor.__getitem__, _subscript
    yield torch.Tensor.__setitem__, _subscript
    yield functional.embedding, _rows(1, ("weight",), 0, ("input",))
    yield functional.embedding_bag, _rows(1, ("weight",), 0, ("input",))
    yield torch.embedding, _rows(0, ("weight",), 1, ("indices",))
    yield torch.embedding_bag, _rows(0, ("weight",), 1, ("indices",))
    yield functional.cross_entropy, _classes
    yield functional.nll_loss, _classes
    yield functional.one_hot, _one_hot


_USES = dict(_functions())


class check_indices(TorchFunctionMode):  # noqa: N801 - a context manager, as torch.no_grad is
    """A context that raises IndexError if an index of an XLA tensor is out of range.

    XLA clamps an out-of-range index of a read, and drops such a write. In this context, the indices
    are copied to the host before each `gather`, `x[i]`, `index_select`, `embedding`,
    `embedding_bag`, `scatter`, `masked_scatter`, `take` and so on that Python calls, and before
    `cross_entropy`, `nll_loss` and `one_hot`. Each copy runs the pending operations and waits, so
    programs are slow. Functions that `torch.compile` has compiled are not checked.

        with torch_xla_ext.debug.check_indices():
            loss = model(tokens)

    Raises:
      IndexError: the message names the function, dimension, size, index and its position.
    """

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        uses = _USES.get(func)
        if uses is not None:
            for use in uses(_Arguments(args, kwargs)):
                _check(func, use)
        return func(*args, **kwargs)


def _check(func: Callable[..., object], use: _Use) -> None:
    if not isinstance(use.index, torch.Tensor) or use.index.device.type != "xla":
        return
    index = use.index.detach().cpu().long()
    lowest = -use.size if use.may_be_negative else 0
    is_wrong = (index < lowest) | (index >= use.size)
    if use.ignored is not None:
        is_wrong &= index != use.ignored
    if not is_wrong.any():
        return
    place = tuple(is_wrong.nonzero()[0].tolist())
    expected = f"from {lowest} to {use.size - 1}" if use.size else "none"
    where = f", at {list(place)} of the indices" if place else ""
    raise IndexError(
        f"{func.__name__}: index {index[place].item()} is out of range for dimension {use.dim} of"
        f" size {use.size} (expected {expected}){where}; {int(is_wrong.sum())} of {index.numel()}"
        " indices are out of range"
    )
