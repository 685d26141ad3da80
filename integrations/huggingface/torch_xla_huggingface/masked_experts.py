"""Run every expert of an MoE block on all tokens.

Tokens that did not choose an expert are zeros in its input, and are left out of the sum.
"""

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torch_xla_huggingface.stand_ins import Expert, Experts, Rows, Unknown


class _Chosen:
    """The set elements of one expert's mask of tokens and choices.

    For each token at most one is set, as in a mask made from a router's choices.

    Attributes:
        tokens: the mask's dimension of the tokens; None until it is known.
    """

    def __init__(self, mask: Tensor) -> None:
        self._mask = mask != 0
        self.tokens: int | None = None

    def size(self, dim: int) -> int:
        return self._mask.shape[dim]

    def is_of_tokens(self, dim: int) -> None:
        """Declare whether the mask's dimension `dim` is that of the tokens."""
        if self.tokens not in (None, dim):
            raise Unknown("one dimension indexed with both tokens and choices")
        self.tokens = dim

    def mask(self, ndim: int) -> Tensor:
        """Return whether a token is chosen: [tokens, 1, …]."""
        mask = self._mask.any(1 - self.tokens)
        return mask.reshape(-1, *[1] * (ndim - 1))

    def of_tokens_and_choices(self) -> Tensor:
        return self._mask.t() if self.tokens else self._mask


class _Rows(Rows):
    """The indices of the chosen elements in one of the mask's dimensions."""

    def __init__(self, chosen: _Chosen, dim: int) -> None:
        self.chosen = chosen
        self.dim = dim


def _taken(tensor: Tensor, index: object) -> Tensor:
    """Return ``tensor[index]`` for all tokens, with zeros for tokens that are not chosen."""
    items = list(index) if isinstance(index, tuple) else [index]
    if len(items) == 1 and isinstance(items[0], Expert):
        number = operator.index(items[0])
        return tensor[number : number + 1]
    first, *others = (item for item in items if item is not None)
    if not isinstance(first, _Rows) or tensor.shape[0] != first.chosen.size(first.dim):
        raise Unknown("indexing a dimension other than the tokens")
    first.chosen.is_of_tokens(first.dim)
    if not others:
        found = torch.where(first.chosen.mask(tensor.ndim), tensor, 0)
    elif len(others) == 1 and isinstance(others[0], (Expert, int)):
        column = tensor[:, operator.index(others[0])]
        found = torch.where(first.chosen.mask(column.ndim), column, 0)
    elif len(others) == 1 and isinstance(others[0], _Rows) and others[0].chosen is first.chosen:
        found = torch.where(first.chosen.of_tokens_and_choices(), tensor, 0).sum(1)
    else:
        raise Unknown(f"indexing with {[type(item).__name__ for item in items]}")
    places = [None if item is None else slice(None) for item in items if item not in others]
    return found[tuple(places)]


def _added(tensor: Tensor, dim: int, index: _Rows, source: Tensor) -> Tensor:
    """Return ``tensor.index_add_(dim, index, source)`` of the chosen rows."""
    if dim != 0 or not isinstance(index, _Rows) or source.shape[0] != tensor.shape[0]:
        raise Unknown("index_add_")
    index.chosen.is_of_tokens(index.dim)
    return tensor.add_(torch.where(index.chosen.mask(source.ndim), source, 0))


class _Number(Expert):
    """The index of an expert, which indexes tensors of all experts."""


_Rows.known = _Number.known = {Tensor.__getitem__: _taken, Tensor.index_add_: _added}


class MaskedExperts(TorchFunctionMode):
    """A dispatch mode that does not read an XLA tensor's indices on the host.

    Args:
        skips_last: whether the last class of the choices is no expert.
    """

    def __init__(self, skips_last: bool) -> None:
        self._skips_last = skips_last

    def __torch_function__(
        self,
        function: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        is_nonzero = function is Tensor.nonzero and kwargs == {"as_tuple": False}
        if (not kwargs or is_nonzero) and len(args) == 1 and isinstance(args[0], Tensor):
            (tensor,) = args
            if function is torch.where and tensor.dim() == 2 and tensor.device.type == "xla":
                chosen = _Chosen(tensor)
                return _Rows(chosen, 0), _Rows(chosen, 1)
            if function is Tensor.nonzero and tensor.dim() == 1 and tensor.device.type == "xla":
                return Experts(tensor.shape[0] - self._skips_last, _Number)
        return function(*args, **(kwargs or {}))
