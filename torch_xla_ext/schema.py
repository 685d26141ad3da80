"""A kernel's schema: what it is called with, as its C++ definition says.

The text comes from the kernel itself (``SchemaText`` of include/torch_xla_ext/descriptor.h), linked
into the wheel or in a registered library. There is no other copy that could differ from it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch

from torch_xla_ext.dtypes import TORCH_TYPES, xla_name

MAX_RANK = 64  # torch's, and that of the kernels' parser


class ArrayType(NamedTuple):
    """The shape and dtype of an operand or a result."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(value: object) -> ArrayType:
        """Of a tensor or anything else with `shape` and `dtype`, or of a pair (shape, dtype).

        Raises:
            TypeError: `value` is none of these, or a dimension is no int.
            ValueError: a dimension is negative or not below 2^63, or there are more than 64.
        """
        if isinstance(value, torch.Tensor):
            return ArrayType(value.shape, value.dtype)
        if isinstance(value, ArrayType):
            shape, dtype = value
        else:
            shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
            if shape is None and isinstance(value, (tuple, list)) and len(value) == 2:
                shape, dtype = value
        if not isinstance(dtype, torch.dtype) or not isinstance(shape, Sequence):
            raise TypeError(
                "expected a tensor, an object with shape and dtype, or a pair (shape, dtype), but "
                f"got one of type {type(value).__name__}"
            )
        return ArrayType(_checked_shape(shape), dtype)

    def __str__(self) -> str:
        return f"{xla_name(self.dtype)}{list(self.shape)}"


def _checked_shape(shape: Sequence[object]) -> tuple[int, ...]:
    try:
        dims = tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"expected a shape of int but got {tuple(shape)}") from None
    if len(dims) > MAX_RANK:
        raise ValueError(f"expected a rank of at most {MAX_RANK} but got {len(dims)}")
    if not all(0 <= dim < 1 << 63 for dim in dims):
        raise ValueError(f"expected dimensions of 0 to 2^63 - 1 but got {list(dims)}")
    return dims


@dataclass(frozen=True)
class Argument:
    """An operand or a result as the signature declares it.

    A dimension is a number, a name, or a name with a star in front.
    """

    label: str  # "operand 1 (b)"
    name: str
    optional: bool
    dtype: str  # XLA's name, or that of a variable
    dims: tuple[str, ...]

    def ranges(self, rank: int) -> list[tuple[str, int, int]]:
        """Which dimensions of an array of this rank each one here stands for: (dim, begin, end)."""
        result, begin = [], 0
        for dim in self.dims:
            count = rank - (len(self.dims) - 1) if dim.startswith("*") else 1
            result.append((dim, begin, begin + count))
            begin += count
        return result


@dataclass(frozen=True)
class Parameter:
    """A number that the kernel takes beside its operands."""

    name: str
    type: str  # bool, i32, i64, f32 or f64
    min: float | None = None
    max: float | None = None


_SIGNATURE = re.compile(r" *(\w+) *\((.*?)\) *-> *\((.*?)\) *(?:where (.*))?")
_ARGUMENT = re.compile(r" *(\w+) *(\?)? *: *(\w+) *\[(.*?)\] *,?")
_PARAMETER = re.compile(r"(\w+): (\w+)(?: in \[(\S+), (\S+)\])?(?:, |$)")


def _arguments(text: str, kind: str) -> tuple[Argument, ...]:
    return tuple(
        Argument(
            label=f"{kind} {index} ({name})",
            name=name,
            optional=bool(optional),
            dtype=dtype,
            dims=tuple(part.replace(" ", "") for part in dims.split(",") if part.strip()),
        )
        for index, (name, optional, dtype, dims) in enumerate(_ARGUMENT.findall(text))
    )


def _variables(text: str | None) -> dict[str, tuple[str, ...]]:
    result = {}
    for part in (text or "").split(",") if text else []:
        name, options = part.split(":")
        result[name.strip()] = tuple(option.strip() for option in options.split("|"))
    return result


def _number(text: str, kind: str) -> float | None:
    if not text:
        return None
    return float(text) if kind.startswith("f") else int(text)


@dataclass(frozen=True, eq=False)
class Schema:
    """The signature and the parameters of one target."""

    text: str
    target: str
    operands: tuple[Argument, ...]
    results: tuple[Argument, ...]
    variables: Mapping[str, tuple[str, ...]]
    parameters: tuple[Parameter, ...] = ()

    @staticmethod
    def parse(text: str) -> Schema:
        """Reads a schema's text. The compiler has checked its signature already.

        Raises:
            ValueError: `text` is not a schema.
        """
        signature, _, parameters = text.partition("\nparams(")
        match = _SIGNATURE.fullmatch(signature)
        if match is None or not parameters.endswith(")"):
            raise ValueError(f"not the schema of a kernel: {text!r}")
        target, operands, results, where = match.groups()
        return Schema(
            text=text,
            target=target,
            operands=_arguments(operands, "operand"),
            results=_arguments(results, "result"),
            variables=_variables(where),
            parameters=tuple(
                Parameter(name, kind, _number(low, kind), _number(high, kind))
                for name, kind, low, high in _PARAMETER.findall(parameters[:-1])
            ),
        )

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The operands and then the results."""
        return self.operands + self.results

    @cached_property
    def hash(self) -> int:
        """FNV-1a of the text, which every payload carries."""
        value = 0xCBF29CE484222325
        for byte in self.text.encode():
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        return value

    @lru_cache(maxsize=4096)  # noqa: B019  # schemas live as long as the process
    def check(self, arrays: tuple[ArrayType | None, ...]) -> None:
        """Checks the operands and then the results of a call, as the kernel itself does.

        Args:
            arrays: one for each of `arguments`; None for an optional operand that is left out.

        Raises:
            TypeError: an operand or result is missing, or is of another dtype.
            ValueError: a shape is not what the signature says.
        """
        if len(arrays) != len(self.arguments):
            raise ValueError(f"{self.target}: expected {len(self.arguments)} arrays")
        for index, (argument, array) in enumerate(zip(self.arguments, arrays, strict=True)):
            if array is None:
                if not argument.optional:
                    raise TypeError(f"{self.target}: {argument.label}: is missing")
                continue
            self._check_dtype(index, array, arrays)
            self._check_shape(index, array, arrays)

    def check_counts(self, num_operands: int, num_results: int) -> None:
        """Checks how many operands and results a call has.

        Raises:
            TypeError: too many or too few; the signature is shown.
        """
        if (num_operands, num_results) != (len(self.operands), len(self.results)):
            raise TypeError(
                f"{self.target}: expected {len(self.operands)} operands and {len(self.results)} "
                f"results but got {num_operands} operands and {num_results} results; the "
                f"signature is {self.signature}"
            )

    @property
    def signature(self) -> str:
        """The line that the kernel's author wrote."""
        return self.text.partition("\n")[0]

    def _check_dtype(
        self, index: int, array: ArrayType, arrays: Sequence[ArrayType | None]
    ) -> None:
        argument, came = self.arguments[index], xla_name(array.dtype)
        options, reason = self.variables.get(argument.dtype, (argument.dtype,)), ""
        if argument.dtype in self.variables:
            for earlier, other in zip(self.arguments[:index], arrays, strict=False):
                if other is not None and earlier.dtype == argument.dtype:
                    options = (xla_name(other.dtype),)
                    reason = f"; {argument.dtype} is that of {earlier.label}"
                    break
        if came not in options:
            expected = " or ".join(
                [", ".join(options[:-1]), options[-1]] if options[1:] else options
            )
            raise TypeError(
                f"{self.target}: {argument.label}: expected dtype {expected} but got {came}{reason}"
            )

    def _check_shape(
        self, index: int, array: ArrayType, arrays: Sequence[ArrayType | None]
    ) -> None:
        argument, rank = self.arguments[index], len(array.shape)
        where = f"{self.target}: {argument.label}: expected"
        star = any(dim.startswith("*") for dim in argument.dims)
        least = len(argument.dims) - star
        if rank < least or (rank > least and not star):
            of_at_least = "of at least " if star else ""
            raise ValueError(f"{where} rank {of_at_least}{least} but got {rank}")
        sizes: dict[str, tuple[tuple[int, ...], str]] = {}
        for other, given in zip(self.arguments[: index + 1], arrays, strict=False):
            if given is None:
                continue
            for dim, begin, end in other.ranges(len(given.shape)):
                came = given.shape[begin:end]
                if other is not argument:
                    sizes.setdefault(dim, (came, other.label))
                    continue
                if dim.isdigit():
                    expected, reason = (int(dim),), ""
                else:
                    expected, label = sizes.setdefault(dim, (came, other.label))
                    reason = f"; {dim.lstrip('*')} is that of {label}"
                if came == expected:
                    continue
                if dim.startswith("*"):
                    raise ValueError(
                        f"{where} dimensions {list(expected)} but got {list(came)}{reason}"
                    )
                raise ValueError(
                    f"{where} dimension {begin} to be {expected[0]} but got {came[0]}{reason}"
                )

    def dtypes(self, argument: Argument) -> tuple[torch.dtype, ...]:
        """The torch dtypes that an operand or result may have."""
        names = self.variables.get(argument.dtype, (argument.dtype,))
        return tuple(TORCH_TYPES[name] for name in names)
