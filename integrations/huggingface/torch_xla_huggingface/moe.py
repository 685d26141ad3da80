"""Mixtures of experts of transformers, without reading which experts have tokens.

A block loops over its experts. ``torch.where(mask)`` finds an expert's tokens, whose number the
device alone knows; the expert computes these rows, and `index_add_` adds the results times the
router's weights. So each layer would wait for the device, and almost each step compile programs.

Here every expert computes as many rows as there are tokens, zeros in place of the ones that it was
not chosen for, and these are left out of the sum. The results are the same, and no shape depends on
what the router chooses. The functions of a block stay transformers': what changes is what `where`
and `nonzero` return there.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch._C._dynamo import eval_frame  # not Dynamo, which takes a second to import
from torch.overrides import TorchFunctionMode

_log = logging.getLogger("torch_xla_ext.mixtures")
# What a function calls that adds the rows of one expert after another.
_CALLED = {"where", "one_hot", "index_add_"}
_MARK = "_torch_xla_ext_mixture"


class _Unknown(Exception):  # noqa: N818
    """Something is done with the rows of an expert that is not done here."""


class _Index:
    """A stand-in for an index, which PyTorch asks for the results of operations."""

    @classmethod
    def __torch_function__(
        cls,
        function: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> Tensor:
        known = _KNOWN.get(function)
        if known is None:
            raise _Unknown(getattr(function, "__name__", str(function)))
        return known(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name) if name.startswith("__") else _Unknown(name)


class _Expert(_Index):
    """The number of an expert: what is to be a tensor of one element."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> int:
        return (self._number,)[index]


class _Experts:
    """All experts, in place of those that have tokens."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[_Expert]:
        return map(_Expert, range(self._count))

    def __getitem__(self, index: slice) -> _Experts:
        if index != slice(None):
            raise _Unknown("a part of the experts")
        return self


class _Chosen:
    """The elements of a mask of tokens and choices that are set: one expert's.

    Of each token at most one is, as of the mask that is made of a router's choices.

    Attributes:
        tokens: the mask's dimension of the tokens; None until something says which it is.
    """

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask != 0
        self.tokens: int | None = None

    def size(self, dim: int) -> int:
        return self._mask.shape[dim]

    def is_of_tokens(self, dim: int) -> None:
        """Declare that this dimension is that of tokens."""
        if self.tokens not in (None, dim):
            raise _Unknown("indices of both kinds")
        self.tokens = dim

    def mask(self, ndim: int) -> Tensor:
        """Return whether a token is chosen: [tokens, 1, …]."""
        mask = self._mask.any(1 - self.tokens)
        return mask.reshape(-1, *[1] * (ndim - 1))

    def of_tokens_and_choices(self) -> Tensor:
        return self._mask.t() if self.tokens else self._mask


class _Count:
    """The number of chosen elements, which only the device knows: it compares as positive."""

    def __eq__(self, other: object) -> bool:
        return not self > other

    def __gt__(self, other: object) -> bool:
        if type(other) is not int or other != 0:
            raise _Unknown("their number")
        return True

    def __index__(self) -> int:
        raise _Unknown("their number")

    __hash__ = None


class _Rows(_Index):
    """The indices of the chosen elements in one of the mask's dimensions, which are not read."""

    shape = (_Count(),)

    def __init__(self, chosen: _Chosen, dim: int) -> None:
        self.chosen = chosen
        self.dim = dim

    def numel(self) -> _Count:
        return self.shape[0]


def _taken(tensor: Tensor, index: object) -> Tensor:
    """Return ``tensor[index]`` of all tokens, with zeros for tokens that are not chosen."""
    items = list(index) if isinstance(index, tuple) else [index]
    if len(items) == 1 and isinstance(items[0], _Expert):
        number = operator.index(items[0])
        return tensor[number : number + 1]
    first, *others = (item for item in items if item is not None)
    if not isinstance(first, _Rows) or tensor.shape[0] != first.chosen.size(first.dim):
        raise _Unknown("an index of something else than tokens")
    first.chosen.is_of_tokens(first.dim)
    if not others:
        found = torch.where(first.chosen.mask(tensor.ndim), tensor, 0)
    elif len(others) == 1 and isinstance(others[0], (_Expert, int)):
        column = tensor[:, operator.index(others[0])]
        found = torch.where(first.chosen.mask(column.ndim), column, 0)
    elif len(others) == 1 and isinstance(others[0], _Rows) and others[0].chosen is first.chosen:
        found = torch.where(first.chosen.of_tokens_and_choices(), tensor, 0).sum(1)
    else:
        raise _Unknown(f"an index of {[type(item).__name__ for item in items]}")
    places = [None if item is None else slice(None) for item in items if item not in others]
    return found[tuple(places)]


def _added(tensor: Tensor, dim: int, index: _Rows, source: Tensor) -> Tensor:
    """Return ``tensor.index_add_(dim, index, source)`` of the chosen rows."""
    if dim != 0 or not isinstance(index, _Rows) or source.shape[0] != tensor.shape[0]:
        raise _Unknown("index_add_")
    index.chosen.is_of_tokens(index.dim)
    return tensor.add_(torch.where(index.chosen.mask(source.ndim), source, 0))


_KNOWN = {Tensor.__getitem__: _taken, Tensor.index_add_: _added}


class _WithoutReads(TorchFunctionMode):
    """A mode in which indices of an XLA tensor's elements are not read."""

    def __torch_function__(
        self,
        function: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if not kwargs and len(args) == 1 and isinstance(args[0], Tensor):
            (tensor,) = args
            if function is torch.where and tensor.dim() == 2 and tensor.device.type == "xla":
                chosen = _Chosen(tensor)
                return _Rows(chosen, 0), _Rows(chosen, 1)
            if function is Tensor.nonzero and tensor.dim() == 1 and tensor.device.type == "xla":
                return _Experts(tensor.shape[0])
        return function(*args, **(kwargs or {}))


# Functions that do what is not known here.
_slow: set[FunctionType] = set()


def _lazily(function: FunctionType, args: tuple, kwargs: dict[str, object]) -> object:
    """Call a block's function without reads."""
    if function not in _slow:
        try:
            with _WithoutReads():
                return function(*args, **kwargs)
        except (_Unknown, TypeError) as error:
            _slow.add(function)
            _log.warning(
                "%s waits for the device and compiles new programs in almost every step: it uses "
                "the indices of an expert's tokens for more than is known here (%s)",
                function.__qualname__,
                error,
            )
    return function(*args, **kwargs)


# Dynamo's graph ends here, as it does at the block's loop, and nothing that is called is compiled.
_lazily._torchdynamo_disable = True
_skip = eval_frame._FrameAction.SKIP
eval_frame.set_code_exec_strategy(_lazily.__code__, eval_frame._FrameExecStrategy(_skip, _skip))


def without_reads(function: FunctionType) -> FunctionType:
    """Return a function without reads in place of a block's that loops over experts.

    Other functions stay as they are.
    """
    if not set(function.__code__.co_names) >= _CALLED:
        return function

    @functools.wraps(function)
    def mixture(*args: object, **kwargs: object) -> object:
        given = [*args, *kwargs.values()]
        if any(isinstance(x, Tensor) and x.device.type == "xla" for x in given):
            return _lazily(function, args, kwargs)
        return function(*args, **kwargs)

    setattr(mixture, _MARK, True)
    return mixture


def are_in(model: nn.Module) -> bool:
    """Return whether a model has such blocks."""
    kinds = {kind for part in model.modules() for kind in type(part).__mro__}
    return any(hasattr(f, _MARK) for kind in kinds for f in vars(kind).values())
