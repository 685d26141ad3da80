"""Generate calls that fit a signature, to check a kernel without a user's call."""

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from xla_kernels.signature.dtypes import PASSED_AS_BYTES, TORCH_TYPES
from xla_kernels.signature.schema import Argument, ArrayType, Constraint, Schema

# Values for sizes, as far as the signature allows. Most are multiples of the numbers by which
# kernels divide sizes.
_SIZES = (1024, 256, 128, 64, 32, 16, 8, 4, 2, 1)
_PARAMETERS = {"bool": False, "i32": 1, "i64": 1, "f32": 1.0, "f64": 1.0}


class Example(NamedTuple):
    """The arguments of a call, including all optional operands."""

    operands: tuple[ArrayType, ...]
    results: tuple[ArrayType, ...]
    parameters: Mapping[str, object]

    def __str__(self) -> str:
        parameters = [f"{name}={value}" for name, value in self.parameters.items()]
        return ", ".join([*map(str, self.operands), *parameters])


def dtypes(schema: Schema) -> Iterator[dict[str, str]]:
    """Yield each combination of dtypes: XLA's names by dtype variable."""
    variables = list(schema.variables)
    for names in itertools.product(*map(schema.dtype_options, variables)):
        chosen = dict(zip(variables, names, strict=True))
        options = [
            {chosen.get(option, option) for option in schema.variables[name]}
            if any(option in schema.variables for option in schema.variables[name])
            else set(schema.dtype_options(name))
            for name in variables
        ]
        if all(chosen[name] in each for name, each in zip(variables, options, strict=True)):
            yield chosen


def examples(schema: Schema, chosen: Mapping[str, str]) -> Iterator[Example]:
    """Return calls with these dtypes and various sizes; an empty list if no generated sizes fit."""
    for size in _SIZES:
        try:
            yield _example(schema, chosen, size)
        except (TypeError, ValueError):
            continue


def _example(schema: Schema, chosen: Mapping[str, str], size: int) -> Example:
    sizes = _sizes(schema, size)
    parameters: dict[str, object] = {}
    for parameter in schema.parameters:
        value = _PARAMETERS[parameter.type]
        if parameter.min is not None:
            value = type(value)(min(max(value, parameter.min), parameter.max))
        parameters[parameter.name] = value
    parameters |= {name: sizes[name] for name in schema.size_parameters}
    operands = tuple(_array(operand, sizes, chosen) for operand in schema.operands)
    given = [*schema.sizes(parameters), *((name, sizes[name]) for name in schema.open_sizes())]
    results = schema.infer(operands, tuple(dict(given).items()), len(schema.results))
    return Example(operands, results, parameters)


def _sizes(schema: Schema, size: int) -> dict[str, int]:
    sizes = {dim.name: size for each in schema.arguments for dim in each.dims if dim.name}
    for constraint in schema.constraints:
        sizes[constraint.name] = _fitting(constraint, size)
    for constraint in schema.constraints:  # multiples of other, already known sizes
        other = sizes.get(constraint.divisor)
        if other:
            sizes[constraint.name] = -(-sizes[constraint.name] // other) * other
    return sizes


def _fitting(constraint: Constraint, size: int) -> int:
    if constraint.choices:
        return min(constraint.choices, key=lambda choice: abs(choice - size))
    if constraint.limits:
        low, high = constraint.limits
        return max(low, size if high is None else min(size, high))
    if constraint.divisor.isdigit():
        divisor = int(constraint.divisor)
        return -(-size // divisor) * divisor
    return size


def _array(argument: Argument, sizes: Mapping[str, int], chosen: Mapping[str, str]) -> ArrayType:
    shape = tuple(
        dim.factor * sizes[dim.name] + dim.offset if dim.name else dim.offset
        for dim in argument.dims
    )
    dtype = chosen.get(argument.dtype, argument.dtype)
    return ArrayType(shape, torch.uint8 if dtype in PASSED_AS_BYTES else TORCH_TYPES[dtype])
