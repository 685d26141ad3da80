"""Parse signatures written in Python, which no C++ compiler has checked."""

import itertools
import re
from collections.abc import Sequence

from xla_kernels.signature.dtypes import TORCH_TYPES
from xla_kernels.signature.schema import Argument, Parameter, Schema, parse_parameters

_TYPES = ("bool", "i32", "i64", "f32", "f64", "str")
_WHERE = re.compile(r"(\w+):(\w+(\|\w+)*|\d+\.\.\d*)|(\w+)%(\w+)==0")


def parse(name: str, signature: str, parameters: str, *, structs: bool = False) -> Schema:
    """Parse the signature and the parameters of a target.

    Args:
        name: the target.
        signature: as in kernel.h (docs/kernels.md), without the name:
            ``"(x: T[n, d]) -> (out: T[n, d]) where T: F16 | BF16"``.
        parameters: ``"eps: f64, causal: bool"``: names and types of the other arguments: bool,
            i32, i64, f32, f64 and str, numbers perhaps with limits, ``"window: i64 in [1, 4096]"``,
            and arrays of numbers, ``"shifts: i64[]"``.
        structs: whether a parameter may be a struct, ``"range: {low: i32, unit: str}"``.

    Raises:
        ValueError: `signature` or `parameters` cannot be parsed.
    """
    where = f"custom-call target {name!r}: signature {signature!r}"
    try:
        parse_parameters(parameters)
    except ValueError:
        raise ValueError(
            f'{where}: parameters must have the form "eps: f64, causal: bool", but are '
            f"{parameters!r}"
        ) from None
    try:
        schema = Schema.parse(f"{name}{signature}\nparams({parameters})")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f'{where} cannot be parsed: {error}; it has the form "(x: T[n, d]) -> (out: T[n, d]) '
            'where T: F16 | BF16"'
        ) from None
    # The parser skips text that it does not understand, so compare its result with the text.
    body, _, conditions = signature.partition(" where ")
    read = f"({_written(schema.operands)})->({_written(schema.results)})"
    if read != re.sub(r"\s", "", body):
        raise ValueError(f"{where} cannot be parsed; only this part was understood: {read}")
    for condition in filter(None, re.sub(r"\s", "", conditions).split(",")):
        if not _WHERE.fullmatch(condition):
            raise ValueError(f"{where}: {condition!r} is not a condition")
    _check_names(schema, where)
    _check_parameters(schema.parameters, where, structs)
    return schema


def _written(arguments: tuple[Argument, ...]) -> str:
    """Return the text of arguments in a signature, without spaces."""

    def one(argument: Argument) -> str:
        if argument.in_place:
            return argument.name
        dims = ",".join(dim.text.replace(" ", "") for dim in argument.dims)
        text = f"{argument.name}{'?' if argument.optional else ''}:{argument.dtype}[{dims}]"
        if argument.layout is not None:
            text += "{" + ",".join(map(str, argument.layout)) + "}"
        return text

    return ",".join(map(one, arguments))


def _check_names(schema: Schema, where: str) -> None:
    if not schema.operands or not schema.results:
        raise ValueError(f"{where}: there must be an operand and a result")
    names = [a.name for a in schema.arguments if not a.in_place]
    names += [parameter.name for parameter in schema.parameters]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{where}: the name {twice[0]} appears twice")
    for argument in schema.arguments:
        if unknown := set(schema.dtype_options(argument.dtype)) - set(TORCH_TYPES):
            raise ValueError(f"{where}: {min(unknown)} is neither a dtype nor a variable")
    for result in schema.results:
        if result.optional:
            raise ValueError(f"{where}: result {result.name} must not be optional")
    for argument in schema.arguments:
        if argument.layout is None:
            continue
        if any(dim.star for dim in argument.dims):
            raise ValueError(f"{where}: {argument.name} has a layout, so its rank must be fixed")
        if sorted(argument.layout) != list(range(len(argument.dims))):
            raise ValueError(
                f"{where}: the layout of {argument.name} must have each of its "
                f"{len(argument.dims)} dimensions once, numbered from 0, the fastest-changing "
                f"first, but is {list(argument.layout)}"
            )
    sizes = {dim.name for argument in schema.arguments for dim in argument.dims}
    for constraint in schema.constraints:
        if constraint.name not in sizes:
            raise ValueError(f"{where}: {constraint.name} is not a size in the signature")
    if unused := set(schema.variables) - {argument.dtype for argument in schema.arguments}:
        nested = set(itertools.chain(*schema.variables.values()))
        if unused - nested:
            raise ValueError(f"{where}: no operand or result is of dtype {min(unused - nested)}")


def _check_parameters(parameters: Sequence[Parameter], where: str, structs: bool) -> None:
    for parameter in parameters:
        if parameter.type == "dict":
            if not structs:
                raise ValueError(f"{where}: parameter {parameter.name} must not be a dict")
            _check_parameters(parameter.fields, where, structs)
        elif parameter.element not in _TYPES or parameter.type in ("str[]", "bool[]"):
            raise ValueError(
                f"{where}: parameter {parameter.name} must be one of {', '.join(_TYPES)}, or an "
                f"array of numbers, as in i64[], but is {parameter.type}"
            )
