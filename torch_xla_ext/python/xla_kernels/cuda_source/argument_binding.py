"""Bind the arguments of a call without a signature to the kernel's parameters."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from xla_kernels.cuda_source.cpp_types import Parameter, label
from xla_kernels.signature.schema import ArrayType


@dataclass(frozen=True)
class Binding:
    """The binding of a call's arguments and outputs to the kernel's parameters.

    Attributes:
        outputs: the results' types.
        aliases: the arguments that the kernel writes to, by their positions.
        of_outputs: for each output, the index of its parameter; None if the parameters are unknown.
        of_arguments: the same for the arguments.
    """

    outputs: list[ArrayType]
    aliases: list[int]
    of_outputs: list[int] | None
    of_arguments: list[int] | None


def bind(
    where: str,
    parameters: Sequence[Parameter] | None,
    args: Sequence[object],
    outputs: Mapping[str | int, object] | Sequence[object],
    aliases: Sequence[str | int],
) -> Binding:
    """Bind the arguments in the order of the parameters, around the outputs.

    Args:
        where: prefix of error messages.
        parameters: the kernel's parameters; None if they are unknown.
        outputs: by the parameters' names or positions; or in the order of the kernel's non-const
            pointers, without those that `aliases` names.
        aliases: names of parameters, or positions among the arguments.

    Raises:
        TypeError, ValueError: the arguments cannot be bound, or can be bound in more than one way.
    """
    types = []
    for name, value in _items(outputs):
        try:
            types.append(ArrayType.of(value))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: output {name}: {error}") from None
    if parameters is None:
        return Binding(types, _positions(where, args, aliases), None, None)
    if len(args) + len(types) != len(parameters):
        raise TypeError(
            f"{where}: {len(args)} arguments and {len(types)} outputs, but the kernel has "
            f"{len(parameters)} parameters: {_listed(parameters)}"
        )
    if isinstance(outputs, Mapping):
        indices = [_index(where, parameters, key) for key in outputs]
        if len(set(indices)) < len(indices):
            raise ValueError(f"{where}: two outputs are given for the same parameter")
    else:
        indices = _found(where, parameters, args, types, aliases)
    rest = [i for i in range(len(parameters)) if i not in indices]
    positions = []
    for alias in aliases:
        if isinstance(alias, str):
            parameter = _index(where, parameters, alias)
            if parameter in indices:
                raise ValueError(f"{where}: {alias} is an output; aliases are for arguments")
            positions.append(rest.index(parameter))
        else:
            positions += _positions(where, args, [alias])
    if len(set(positions)) < len(positions):
        raise ValueError(f"{where}: aliases names an argument twice")
    for position in positions:
        if not isinstance(args[position], torch.Tensor):
            raise TypeError(
                f"{where}: aliases names {label(parameters, rest[position])}, but the argument is "
                f"of type {type(args[position]).__name__}, not a tensor"
            )
    return Binding(types, positions, indices, rest)


def check(
    where: str, parameters: Sequence[Parameter], args: Sequence[object], binding: Binding
) -> None:
    """Check that the parameters accept their arguments.

    Raises:
        TypeError, ValueError: a parameter does not accept its argument.
    """
    for index, type_ in zip(binding.of_outputs, binding.outputs, strict=True):
        parameter, named = parameters[index], f"{where}: {label(parameters, index)}"
        parameter.check_dtype(named, type_.dtype)
        if not parameter.is_written:
            raise TypeError(f"{named} is {parameter.type}, but an output needs a non-const pointer")
    for position, (index, value) in enumerate(zip(binding.of_arguments, args, strict=True)):
        parameter, named = parameters[index], f"{where}: {label(parameters, index)}"
        if not isinstance(value, torch.Tensor):
            if parameter.is_number or not parameter.takes_values:
                parameter.packed(named, value)
            continue
        parameter.check_dtype(named, value.dtype)
        if position in binding.aliases and not parameter.is_written:
            raise TypeError(f"{named} is {parameter.type}: the kernel cannot write to it")


def _items(outputs: object) -> list[tuple[object, object]]:
    if isinstance(outputs, Mapping):
        return list(outputs.items())
    return list(enumerate(outputs))


def _listed(parameters: Sequence[Parameter]) -> str:
    return ", ".join(f"{p.type} {p.name}" if p.name else p.type for p in parameters)


def _index(where: str, parameters: Sequence[Parameter], key: str | int) -> int:
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(parameters):
        return key
    names = [parameter.name for parameter in parameters]
    if key in names and key is not None:
        return names.index(key)
    raise ValueError(
        f"{where}: there is no parameter {key!r}; the kernel has {_listed(parameters)}"
    )


def _positions(where: str, args: Sequence[object], aliases: Sequence[str | int]) -> list[int]:
    for alias in aliases:
        if isinstance(alias, str):
            raise ValueError(
                f"{where}: the parameters' names are not known: name the argument {alias!r} by its "
                "position in aliases, or pass prototype"
            )
        if isinstance(alias, bool) or not isinstance(alias, int) or not 0 <= alias < len(args):
            raise ValueError(
                f"{where}: aliases names argument {alias!r}, but there are "
                f"{len(args)} arguments, from 0"
            )
    return list(aliases)


def _found(
    where: str,
    parameters: Sequence[Parameter],
    args: Sequence[object],
    types: Sequence[ArrayType],
    aliases: Sequence[str | int],
) -> list[int]:
    """Return the parameters for unnamed outputs, if only one choice fits the types."""
    named = {_index(where, parameters, alias) for alias in aliases if isinstance(alias, str)}
    written = [i for i, p in enumerate(parameters) if p.is_written and i not in named]
    choices = [
        list(indices)
        for indices in itertools.combinations(written, len(types))
        if _fits(parameters, indices, args, types, aliases)
    ]
    if len(choices) == 1:
        return choices[0]
    pointers = ", ".join(label(parameters, i) for i in written) or "none"
    number = "no" if not choices else "more than one"
    raise TypeError(
        f"{where}: there is {number} way to bind {len(types)} outputs to the kernel's non-const "
        f"pointers ({pointers}), of {_listed(parameters)}; declare pointers that the kernel only "
        "reads as const, or name the outputs: outputs={'out': x}"
    )


def _fits(
    parameters: Sequence[Parameter],
    indices: Sequence[int],
    args: Sequence[object],
    types: Sequence[ArrayType],
    aliases: Sequence[str | int],
) -> bool:
    rest = [i for i in range(len(parameters)) if i not in indices]
    for index, type_ in zip(indices, types, strict=True):
        if not parameters[index].accepts(type_.dtype):
            return False
    for position, (index, value) in enumerate(zip(rest, args, strict=True)):
        parameter = parameters[index]
        if isinstance(value, torch.Tensor):
            if not (parameter.takes_arrays and parameter.accepts(value.dtype)):
                return False
        elif value is not None and not parameter.takes_values:
            return False
        if position in aliases and not parameter.is_written:
            return False
    return True
