"""Read a kernel's schema: its signature and parameters, from its C++ definition.

The text comes from the compiled kernel (``SchemaText`` in include/torch_xla_ext/untyped_payload.h),
which is linked into the wheel or in a registered library. No second copy exists that could differ.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import torch

from xla_kernels.signature import check
from xla_kernels.signature.dtypes import TORCH_TYPES, XLA_TYPES, xla_name

MAX_RANK = 64  # torch's, and that of the kernels' parser


class ArrayType(NamedTuple):
    """The shape and dtype of an operand or a result."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(value: object) -> ArrayType:
        """Return the type of an object with `shape` and `dtype`, or of a pair (shape, dtype).

        Raises:
            TypeError: `value` is neither of these, or a dimension is not an int.
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

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

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


class Dim(NamedTuple):
    """A dimension as the signature declares it: ``factor * name + offset``.

    Without a name, the dimension is the number `offset`; with a star, it stands for any number of
    dimensions.
    """

    text: str
    name: str = ""
    factor: int = 1
    offset: int = 0
    star: bool = False


@dataclass(frozen=True)
class Argument:
    """An operand or a result as the signature declares it.

    Attributes:
        alias: the index of the operand whose buffer a result has, else None.
        layout: the dimensions in memory order, the fastest-changing first, as XLA writes it. None
            for row-major arrays.
    """

    label: str  # "operand 1 (b)"
    name: str
    optional: bool
    dtype: str  # XLA's name, or that of a variable
    dims: tuple[Dim, ...]
    alias: int | None = None
    layout: tuple[int, ...] | None = None

    @property
    def slowest_first(self) -> tuple[int, ...] | None:
        """The dimensions in memory order, the slowest-changing first; None for row-major arrays."""
        return None if self.layout is None else self.layout[::-1]

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of an array of this shape, in elements."""
        order = range(len(shape) - 1, -1, -1) if self.layout is None else self.layout
        strides, step = [0] * len(shape), 1
        for dim in order:
            strides[dim] = step
            step *= shape[dim]
        return tuple(strides)

    @property
    def in_place(self) -> bool:
        """True for a result in an operand's buffer."""
        return self.alias is not None

    def ranges(self, rank: int) -> list[tuple[Dim, int, int]]:
        """Return the range of dimensions that each declared dimension covers: (dim, begin, end)."""
        result, begin = [], 0
        for dim in self.dims:
            count = rank - (len(self.dims) - 1) if dim.star else 1
            result.append((dim, begin, begin + count))
            begin += count
        return result


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel, which is not an array operand.

    Attributes:
        type: bool, i32, i64, f32 or f64; str; an array of numbers, as in "i64[]"; or "dict".
        fields: the parameters in a dict.
    """

    name: str
    type: str
    min: float | None = None
    max: float | None = None
    fields: tuple[Parameter, ...] = ()

    @property
    def element(self) -> str:
        """The type of an array's elements."""
        return self.type.removesuffix("[]")

    @property
    def is_array(self) -> bool:
        return self.type.endswith("[]")

    @property
    def type_text(self) -> str:
        """The type as in the schema, without limits."""
        if self.type != "dict":
            return self.type
        return "{" + ", ".join(f"{each.name}: {each.type_text}" for each in self.fields) + "}"


@dataclass(frozen=True)
class Constraint:
    """A condition on a size in the signature. Exactly one of the attributes is not empty.

    Attributes:
        choices: the allowed sizes.
        limits: the least and the greatest size, each of which may be None.
        divisor: a number or another size that must divide the size.
    """

    name: str
    choices: tuple[int, ...] = ()
    limits: tuple[int, int | None] | None = None
    divisor: str = ""


_SIGNATURE = re.compile(r" *(\w+) *\((.*?)\) *-> *\((.*?)\) *(?:where (.*))?")
_ARGUMENT = re.compile(r" *(\w+) *(\?)? *(?:: *(\w+) *\[(.*?)\] *(?:\{([\d, ]*)\})?)? *,?")
_DIM = re.compile(r"(?P<star>\*)?(?:(?P<factor>\d+)\*)?(?P<name>[A-Za-z_]\w*)(?P<offset>[+-]\d+)?")
_MULTIPLE = re.compile(r" *(\w+) *% *(\w+) *== *0 *")
_PARAMETER = re.compile(r"\s*(\w+)\s*:\s*(?:(\{)|(\w+(?:\[\])?)(?: in \[(\S+), (\S+)\])?)")


def _dim(text: str) -> Dim:
    text = text.strip()
    compact = text.replace(" ", "")
    if compact.isdigit():
        return Dim(text, offset=int(compact))
    match = _DIM.fullmatch(compact)
    if match is None:
        raise ValueError(f"not a dimension: {text!r}")
    return Dim(
        text,
        match["name"],
        factor=int(match["factor"] or 1),
        offset=int(match["offset"] or 0),
        star=bool(match["star"]),
    )


def _arguments(text: str, kind: str, operands: Sequence[Argument] = ()) -> tuple[Argument, ...]:
    result = []
    for index, (name, optional, dtype, dims, layout) in enumerate(_ARGUMENT.findall(text)):
        label = f"{kind} {index} ({name})"
        if dtype:
            parsed = tuple(_dim(part) for part in dims.split(",") if part.strip())
            order = tuple(map(int, layout.split(","))) if layout.strip() else None
            result.append(Argument(label, name, bool(optional), dtype, parsed, layout=order))
        else:
            (alias,) = (i for i, operand in enumerate(operands) if operand.name == name)
            operand = operands[alias]
            result.append(
                Argument(label, name, False, operand.dtype, operand.dims, alias, operand.layout)
            )
    return tuple(result)


def _where(text: str | None) -> tuple[dict[str, tuple[str, ...]], tuple[Constraint, ...]]:
    """Parse the dtype variables and the constraints on sizes."""
    variables, constraints = {}, []
    for part in (text or "").split(",") if text else []:
        if multiple := _MULTIPLE.fullmatch(part):
            constraints.append(Constraint(multiple[1], divisor=multiple[2]))
            continue
        name, _, options = part.partition(":")
        name, choices = name.strip(), tuple(option.strip() for option in options.split("|"))
        if not choices[0][:1].isdigit():
            variables[name] = choices
        elif ".." in choices[0]:
            low, _, high = (number.strip() for number in choices[0].partition(".."))
            limits = int(low), int(high) if high else None
            constraints.append(Constraint(name, limits=limits))
        else:
            constraints.append(Constraint(name, choices=tuple(map(int, choices))))
    return variables, tuple(constraints)


def _number(text: str, kind: str) -> float | None:
    if not text:
        return None
    return float(text) if kind.startswith("f") else int(text)


def parse_parameters(text: str) -> tuple[Parameter, ...]:
    """Parse ``"eps: f64 in [0, 1], shifts: i64[], range: {low: i32, unit: str}"``.

    Raises:
        ValueError: `text` cannot be parsed.
    """
    return _parameters(text, 0, "")[0]


def _parameters(text: str, at: int, closing: str) -> tuple[tuple[Parameter, ...], int]:
    """Return the parameters up to `closing`, a brace or "", and the position after it."""
    end = re.compile(r"\s*" + (re.escape(closing) or r"\Z"))
    result: list[Parameter] = []
    while (match := end.match(text, at)) is None:
        if result:
            comma = re.compile(r"\s*,").match(text, at)
            at = comma.end() if comma is not None else at
        parameter = _PARAMETER.match(text, at)
        if parameter is None or (result and comma is None):
            raise ValueError(f"not parameters: {text[at:]!r}")
        name, nested, kind, low, high = parameter.groups()
        at, fields = parameter.end(), ()
        if nested:
            kind = "dict"
            fields, at = _parameters(text, at, "}")
        low, high = _number(low or "", kind), _number(high or "", kind)
        result.append(Parameter(name, kind, low, high, fields))
    return tuple(result), match.end()


# Sizes given by parameters: pairs of a name and a size.
Sizes = tuple[tuple[str, int], ...]
# A kernel's size function (include/torch_xla_ext/sizes.h), of its operands' sizes and dtypes.
SizeFunction = Callable[[Sequence[int], Sequence[int]], int]


def _counts(operands: int, results: int) -> str:
    return " and ".join(
        f"{count} {noun}{'' if count == 1 else 's'}"
        for count, noun in ((operands, "operand"), (results, "result"))
    )


def _layouts(arguments: Sequence[Argument]) -> dict[int, tuple[int, ...]]:
    orders = ((i, argument.slowest_first) for i, argument in enumerate(arguments))
    return {i: order for i, order in orders if order is not None}


@dataclass(frozen=True, eq=False)
class Schema:
    """The signature and the parameters of one target.

    Attributes:
        caller: prefix of error messages: the target, or the operator that calls the kernel.
        size_functions: the kernel's functions that compute open sizes, by the sizes' names.
    """

    text: str
    target: str
    caller: str
    operands: tuple[Argument, ...]
    results: tuple[Argument, ...]
    variables: Mapping[str, tuple[str, ...]]
    constraints: tuple[Constraint, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    size_functions: Mapping[str, SizeFunction] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> Schema:
        """Parse a schema's text, whose signature the C++ compiler has already checked.

        Raises:
            ValueError: `text` is not a schema.
        """
        signature, _, parameters = text.partition("\nparams(")
        match = _SIGNATURE.fullmatch(signature)
        if match is None or not parameters.endswith(")"):
            raise ValueError(f"not the schema of a kernel: {text!r}")
        target, arguments, results, where = match.groups()
        operands = _arguments(arguments, "operand")
        variables, constraints = _where(where)
        return Schema(
            text=text,
            target=target,
            caller=target,
            operands=operands,
            results=_arguments(results, "result", operands),
            variables=variables,
            constraints=constraints,
            parameters=parse_parameters(parameters[:-1]),
        )

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The operands, then the results."""
        return self.operands + self.results

    @cached_property
    def hash(self) -> int:
        """The FNV-1a hash of the schema's text, which every payload contains."""
        value = 0xCBF29CE484222325
        for byte in self.text.encode():
            value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        return value

    @property
    def signature(self) -> str:
        """The signature as the kernel's author wrote it."""
        return self.text.partition("\n")[0]

    @cached_property
    def size_parameters(self) -> tuple[str, ...]:
        """The parameters that are sizes in the signature."""
        names = {dim.name for argument in self.arguments for dim in argument.dims}
        return tuple(
            p.name for p in self.parameters if p.name in names and p.type in ("i32", "i64")
        )

    def sizes(self, values: Mapping[str, object]) -> Sizes:
        """Return the sizes that are parameters, from the parameters' values."""
        return tuple((name, values[name]) for name in self.size_parameters)

    def open_sizes(self, num_results: int | None = None) -> tuple[str, ...]:
        """Return the first results' open sizes, which no operand or parameter gives."""
        known = {dim.name for operand in self.operands for dim in operand.dims}
        known.update(self.size_parameters)
        dims = [dim.name for result in self.results[:num_results] for dim in result.dims]
        return tuple(dict.fromkeys(name for name in dims if name and name not in known))

    @property
    def has_layouts(self) -> bool:
        """True if an operand or result is not row-major."""
        return any(argument.layout is not None for argument in self.arguments)

    def operand_layouts(self, operands: Sequence[object | None]) -> dict[int, tuple[int, ...]]:
        """Return the layouts of operands that are not row-major, in the form of traits.Traits.

        Args:
            operands: a call's operands, None for an omitted one; the layouts' keys count the
                others.
        """
        present = [
            argument
            for argument, operand in zip(self.operands, operands, strict=True)
            if operand is not None
        ]
        return _layouts(present)

    @cached_property
    def result_layouts(self) -> dict[int, tuple[int, ...]]:
        """Return the layouts of results that are not row-major, in the form of traits.Traits."""
        return _layouts(self.results)

    @lru_cache(maxsize=4096)  # noqa: B019  # schemas live as long as the process
    def computed_size(self, name: str, operands: tuple[ArrayType | None, ...]) -> int:
        """Return an open size, which the kernel's own function computes from checked operands.

        Raises:
            ValueError: the function uses a size that no operand gives.
        """
        known = check.sizes(self, operands)
        dims = [dim for operand in self.operands for dim in operand.dims if not dim.star]
        names = dict.fromkeys(dim.name for dim in dims if dim.name)
        size = self.size_functions[name](
            [known.get(each, -1) for each in names],
            [0 if array is None else XLA_TYPES[array.dtype][1] for array in operands],
        )
        if size < 0:
            raise ValueError(
                f"{self.caller}: the kernel's function that computes the size {name} failed"
            )
        return size

    @lru_cache(maxsize=4096)  # noqa: B019
    def check(self, arrays: tuple[ArrayType | None, ...], sizes: Sizes = ()) -> None:
        """Check the operands, then the results, of a call, as the kernel itself does.

        Args:
            arrays: one for each of `arguments`; None for an omitted optional operand.
            sizes: the sizes that parameters give, from `sizes()`.

        Raises:
            TypeError: an operand or result is missing, or has a wrong dtype.
            ValueError: a shape does not match the signature.
        """
        if len(arrays) != len(self.arguments):
            raise ValueError(
                f"{self.caller}: expected {len(self.arguments)} arrays but got {len(arrays)}"
            )
        check.check(self, arrays, sizes)

    def infer(
        self, operands: tuple[ArrayType | None, ...], sizes: Sizes = (), num_results: int = 0
    ) -> tuple[ArrayType, ...]:
        """Check the operands of a call, whose sizes may be symbolic, and infer the results.

        Args:
            operands: the operands' types; None for an omitted optional operand.
            sizes: the sizes that parameters give, and the open sizes.
            num_results: how many results to infer.

        Raises:
            As `check`.
        """
        shapes = [array.shape for array in operands if array is not None]
        if all(type(size) is int for size in chain(*shapes, (size for _, size in sizes))):
            return self._infer_known(operands, sizes, num_results)
        types = check.infer(self, operands, sizes, num_results)
        return tuple(ArrayType(*each) for each in types)

    @lru_cache(maxsize=4096)  # noqa: B019
    def _infer_known(
        self, operands: tuple[ArrayType | None, ...], sizes: Sizes, num_results: int
    ) -> tuple[ArrayType, ...]:
        types = check.infer(self, operands, sizes, num_results)
        return tuple(ArrayType(*each) for each in types)

    def check_counts(self, num_operands: int, num_results: int) -> None:
        """Check how many operands and results a call has.

        Raises:
            TypeError: there are too many or too few; the message shows the signature.
        """
        if (num_operands, num_results) != (len(self.operands), len(self.results)):
            expected = _counts(len(self.operands), len(self.results))
            raise TypeError(
                f"{self.caller}: expected {expected} but got "
                f"{_counts(num_operands, num_results)}; the signature is {self.signature}"
            )

    def dtype_options(self, name: str) -> tuple[str, ...]:
        """Return XLA's names of the dtypes that a name in the signature may stand for."""
        if name not in self.variables:
            return (name,)
        options = [self.dtype_options(option) for option in self.variables[name]]
        return tuple(dict.fromkeys(option for group in options for option in group))

    def dtypes(self, argument: Argument) -> tuple[torch.dtype, ...]:
        """Return the torch dtypes that an operand or result may have."""
        return tuple(TORCH_TYPES[name] for name in self.dtype_options(argument.dtype))
