"""Compute a call's arguments for each part of its arrays that a device may have.

Arguments that depend on shapes, such as a grid of blocks, are given as functions. A function cannot
be part of a program's key, and the values that it reads may change before XLA compiles the program.
So these functions are called when the call is traced, once for each part that the rule and the
number of devices allow.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from torch_xla_ext.sharding.plan import Shape
from torch_xla_ext.sharding.rule import Rule

Value = TypeVar("Value")
Shapes = tuple[Shape | None, ...]


class Array(Protocol):
    """A tensor, or the type of one."""

    shape: Shape


class Parts(Generic[Value]):
    """A function's results for each part that a device may have; its repr has all of them."""

    def __init__(
        self,
        function: Callable[[Shapes, Shapes], Value],
        rule: Rule,
        operands: Sequence[Shape | None],
        results: Sequence[Shape],
        num_devices: int,
    ) -> None:
        """Call the function.

        Args:
            function: receives the operands' and the results' shapes. It raises TypeError or
                ValueError if the kernel refuses them.
            operands, results: the shapes of the whole arrays.
        """
        self._values: dict[tuple[Shapes, Shapes], Value | TypeError | ValueError] = {}
        for shapes in divisions(rule, operands, results, num_devices):
            try:
                self._values[shapes] = function(*shapes)
            except (TypeError, ValueError) as error:
                self._values[shapes] = error

    def __repr__(self) -> str:
        return repr(self._values)

    def at(self, operands: Sequence[Array | None], results: Sequence[Array]) -> Value:
        """Return the function's result for a device with these parts of the arrays.

        Raises:
            TypeError, ValueError: the function raised this for the part.
        """
        value = self._values[_shapes(operands), _shapes(results)]
        if isinstance(value, (TypeError, ValueError)):
            raise value
        return value


def divisions(
    rule: Rule, operands: Sequence[Shape | None], results: Sequence[Shape], num_devices: int
) -> Iterator[tuple[Shapes, Shapes]]:
    """Return the shapes of a device's operands and results, for each way to share the call."""
    sizes = rule.sizes(operands)
    seen = set()
    for counts in _counts(list(sizes.items()), num_devices):
        parts = []
        for declared, arrays in ((rule.operands, operands), (rule.results, results)):
            shapes: list[Shape | None] = []
            for dims, shape in zip(declared, arrays, strict=True):
                part = list(shape or ())
                for i, dim in enumerate(rule.dims(len(part), dims) if shape is not None else ()):
                    for factor in dim:
                        part[i] //= counts.get(factor, 1)
                shapes.append(None if shape is None else tuple(part))
            parts.append(tuple(shapes))
        if tuple(parts) not in seen:
            seen.add(tuple(parts))
            yield tuple(parts)


def _counts(sizes: list[tuple[str, int]], num_devices: int) -> Iterator[dict[str, int]]:
    """Return the numbers of equal parts into which the devices can divide each factor."""
    if not sizes:
        yield {}
        return
    (name, size), *rest = sizes
    for count in range(1, num_devices + 1):
        if num_devices % count == 0 and size % count == 0:
            for others in _counts(rest, num_devices // count):
                yield {name: count, **others}


def _shapes(arrays: Sequence[Array | None]) -> Shapes:
    return tuple(None if array is None else tuple(array.shape) for array in arrays)
