"""Stand-ins that an MoE block receives for indices that only the device knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NoReturn


class Unknown(Exception):  # noqa: N818
    """The block uses an expert's rows in a way that this package does not support."""


class Index:
    """A stand-in for an index; PyTorch calls it for the results of operations.

    Attributes:
        known: functions that compute the results, by PyTorch's function.
    """

    known: ClassVar[dict[Callable, Callable]] = {}

    @classmethod
    def __torch_function__(
        cls,
        function: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        known = cls.known.get(function)
        if known is None:
            raise Unknown(getattr(function, "__name__", str(function)))
        return known(*args, **(kwargs or {}))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name) if name.startswith("__") else Unknown(name)


class Expert(Index):
    """An expert's index, in place of a tensor with one element."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number

    item = __index__

    def __getitem__(self, index: int) -> int:
        return (self._number,)[index]


class Experts:
    """All experts, in place of those that have tokens."""

    def __init__(self, count: int, expert: type[Expert] = Expert) -> None:
        self._count = count
        self._expert = expert

    def __iter__(self) -> Iterator[Expert]:
        return map(self._expert, range(self._count))

    def squeeze(self, dim: int) -> Experts:
        if dim not in (-1, 1):
            raise Unknown("squeeze")
        return self

    def __getitem__(self, index: slice) -> Experts:
        if index != slice(None):
            raise Unknown("indexing with only some of the experts")
        return self


class Count:
    """The number of chosen elements, which only the device knows: it compares as positive."""

    def __eq__(self, other: object) -> bool:
        return not self > other

    def __gt__(self, other: object) -> bool:
        if type(other) is not int or other != 0:
            raise Unknown("reading the number of tokens")
        return True

    def __index__(self) -> int:
        raise Unknown("reading the number of tokens")

    __hash__ = None


class Rows(Index):
    """The indices, in one dimension, of chosen elements, which are never read."""

    shape = (Count(),)

    def numel(self) -> Count:
        return self.shape[0]
