"""Check a call against its kernel's signature, and infer the results' shapes and dtypes.

The error messages equal those of the kernel's own checks (include/torch_xla_ext/check.h). Sizes may
be symbolic: conditions that are only known at run time are checked then.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from xla_kernels.signature.dtypes import PASSED_AS_BYTES, TORCH_TYPES, xla_name

if TYPE_CHECKING:
    from xla_kernels.signature.schema import Argument, ArrayType, Constraint, Dim, Schema, Sizes

# The name, in error texts, of a parameter that gives a size.
_PARAMETER = "a parameter"


def require(
    condition: bool | torch.SymBool, error: type[Exception], message: Callable[[], str]
) -> None:
    """Raise ``error(message())`` unless `condition` holds."""
    if isinstance(condition, torch.SymBool):
        # A symbolic condition becomes a guard of the traced program, or an assertion in it.
        torch._check_with(error, condition, message)
    elif not condition:
        raise error(message())


def check(schema: Schema, arrays: Sequence[ArrayType | None], sizes: Sizes) -> None:
    """Implement `Schema.check`, with one of `arrays` for each argument of the signature."""
    call = _Call(schema, sizes, arrays)
    for argument, array in zip(schema.arguments, arrays, strict=True):
        call.check(argument, array)
    call.check_constraints()


def infer(
    schema: Schema, operands: Sequence[ArrayType | None], sizes: Sizes, num_results: int
) -> list[tuple[torch.Size, torch.dtype]]:
    """Implement `Schema.infer`."""
    call = _Call(schema, sizes, operands)
    for argument, array in zip(schema.operands, operands, strict=True):
        call.check(argument, array)
    call.check_constraints()
    return [call.result(argument) for argument in schema.results[:num_results]]


def sizes(schema: Schema, arrays: Sequence[ArrayType | None], given: Sizes = ()) -> dict[str, int]:
    """Return the sizes of the signature's names from checked operands, results and `given`."""
    call = _Call(schema, given, arrays)
    for argument, array in zip(schema.arguments, arrays, strict=False):
        call.check(argument, array)
    return call.known_sizes()


def _alternatives(options: Sequence[object]) -> str:
    """Return the options as text: ``a, b or c``."""
    texts = [str(option) for option in options]
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if texts[1:] else texts)


class _Call:
    """A call's arrays, and the known sizes of the signature's names."""

    def __init__(self, schema: Schema, sizes: Sizes, arrays: Sequence[ArrayType | None]) -> None:
        self._schema = schema
        # By name: the size, or the sizes of a starred name, and the argument that gives it.
        self._sizes: dict[str, tuple[object, str]] = {
            name: (size, _PARAMETER) for name, size in sizes
        }
        # By dtype variable: the first array with it.
        self._dtypes: dict[str, tuple[torch.dtype, str]] = {}
        for argument, array in zip(schema.arguments, arrays, strict=False):
            if array is not None and argument.dtype in schema.variables:
                self._dtypes.setdefault(argument.dtype, (array.dtype, argument.label))

    def check(self, argument: Argument, array: ArrayType | None) -> None:
        if array is not None:
            self._check_dtype(argument, array)
            self._check_shape(argument, array)
        elif not argument.optional:
            raise TypeError(f"{self._where(argument.label)} is missing")

    def known_sizes(self) -> dict[str, int]:
        return {name: size for name, (size, _) in self._sizes.items() if not name.startswith("*")}

    def _where(self, label: str) -> str:
        return f"{self._schema.caller}: {label}:"

    def _check_dtype(self, argument: Argument, array: ArrayType) -> None:
        came, options, reason = xla_name(array.dtype), [argument.dtype], ""
        if argument.dtype in self._schema.variables:
            dtype, label = self._dtypes[argument.dtype]
            if label != argument.label:
                options = [xla_name(dtype)]
                reason = f"; {argument.dtype} is that of {label}"
            else:
                options, reason = self._options(argument.dtype)
        if came not in options and not (came == "U8" and set(options) & set(PASSED_AS_BYTES)):
            raise TypeError(
                f"{self._where(argument.label)} expected dtype {_alternatives(options)} but got "
                f"{came}{reason}"
            )

    def _options(self, variable: str) -> tuple[list[str], str]:
        """Return the dtypes that a variable allows, resolving another variable among them."""
        options, reason = [], ""
        for option in self._schema.variables[variable]:
            if option in self._dtypes:
                dtype, label = self._dtypes[option]
                options.append(xla_name(dtype))
                reason = f"; {option} is that of {label}"
            else:
                options += self._schema.dtype_options(option)
        return list(dict.fromkeys(options)), reason

    def _check_shape(self, argument: Argument, array: ArrayType) -> None:
        rank, where = len(array.shape), self._where(argument.label)
        star = any(dim.star for dim in argument.dims)
        least = len(argument.dims) - star
        if rank < least or (rank > least and not star):
            of_at_least = "of at least " if star else ""
            expected = f"rank {of_at_least}{least} [{', '.join(dim.text for dim in argument.dims)}]"
            raise ValueError(f"{where} expected {expected} but got {rank} {list(array.shape)}")
        for dim, begin, end in argument.ranges(rank):
            if dim.star:
                self._check_star(argument, dim, tuple(array.shape[begin:end]))
            else:
                self._check_size(argument, dim, begin, array.shape[begin])

    def _check_star(self, argument: Argument, dim: Dim, came: tuple[int, ...]) -> None:
        key = "*" + dim.name
        expected, label = self._sizes.setdefault(key, (came, argument.label))

        def message() -> str:
            return (
                f"{self._where(argument.label)} expected dimensions {list(expected)} but got "
                f"{list(came)}; {dim.name} is that of {label}"
            )

        require(len(came) == len(expected), ValueError, message)
        for size, other in zip(came, expected, strict=True):
            require(size == other, ValueError, message)

    def _check_size(self, argument: Argument, dim: Dim, index: int, came: int) -> None:
        where = f"{self._where(argument.label)} expected dimension {index} to be"
        if dim.name and dim.name not in self._sizes:
            size = came - dim.offset
            if dim.factor != 1 or dim.offset != 0:
                require(size >= 0, ValueError, lambda: f"{where} {dim.text} but got {came}")
            if dim.factor != 1:
                whole = size % dim.factor == 0
                require(whole, ValueError, lambda: f"{where} {dim.text} but got {came}")
                size = size // dim.factor
            self._sizes[dim.name] = size, argument.label
            return
        if not dim.name:
            expected = dim.offset
            require(came == expected, ValueError, lambda: f"{where} {expected} but got {came}")
            return
        size, label = self._sizes[dim.name]
        expected = dim.factor * size + dim.offset
        reason = f"{dim.name} is {_that_of(label)}"
        if dim.text != dim.name:
            reason = f"it is {dim.text}, and {reason}"
        require(
            came == expected, ValueError, lambda: f"{where} {expected} but got {came}; {reason}"
        )

    def check_constraints(self) -> None:
        for constraint in self._schema.constraints:
            if constraint.name in self._sizes:
                self._check_constraint(constraint)

    def _check_constraint(self, constraint: Constraint) -> None:
        name = constraint.name
        size, label = self._sizes[name]
        where = f"{self._where(label)} expected {name} to be"
        if constraint.choices:
            fits = functools.reduce(operator.or_, [size == choice for choice in constraint.choices])
            options = _alternatives(constraint.choices)
            require(fits, ValueError, lambda: f"{where} {options} but got {size}")
        elif constraint.limits:
            low, high = constraint.limits
            text = f"at least {low}" if high is None else f"{low} to {high}"
            for fits in (size >= low, True if high is None else size <= high):
                require(fits, ValueError, lambda: f"{where} {text} but got {size}")
        else:
            self._check_multiple(where, size, constraint.divisor)

    def _check_multiple(self, where: str, size: int, divisor: str) -> None:
        if divisor.isdigit():
            fits = size % int(divisor) == 0
            require(fits, ValueError, lambda: f"{where} a multiple of {divisor} but got {size}")
        elif divisor in self._sizes:
            other, label = self._sizes[divisor]

            def message() -> str:
                return (
                    f"{where} a multiple of {divisor}, {other}, but got {size}; {divisor} is "
                    f"{_that_of(label)}"
                )

            require(other != 0, ValueError, message)
            require(size % other == 0, ValueError, message)

    def result(self, argument: Argument) -> tuple[torch.Size, torch.dtype]:
        """Return the shape and the dtype that a result must have."""
        shape: list[int] = []
        for dim in argument.dims:
            key = "*" + dim.name if dim.star else dim.name
            if key and key not in self._sizes:
                raise ValueError(
                    f"{self._where(argument.label)} {dim.name} does not follow from the given "
                    "operands"
                )
            if dim.star:
                shape += self._sizes[key][0]
            elif dim.name:
                shape.append(dim.factor * self._sizes[key][0] + dim.offset)
            else:
                shape.append(dim.offset)
        return torch.Size(shape), self._result_dtype(argument)

    def _result_dtype(self, argument: Argument) -> torch.dtype:
        if argument.dtype in self._dtypes:
            return self._dtypes[argument.dtype][0]
        options = (
            self._options(argument.dtype)[0]
            if argument.dtype in self._schema.variables
            else [argument.dtype]
        )
        if len(options) > 1:
            raise TypeError(
                f"{self._where(argument.label)} {argument.dtype} does not follow from the given "
                "operands"
            )
        return torch.uint8 if options[0] in PASSED_AS_BYTES else TORCH_TYPES[options[0]]


def _that_of(label: str) -> str:
    return label if label == _PARAMETER else f"that of {label}"
