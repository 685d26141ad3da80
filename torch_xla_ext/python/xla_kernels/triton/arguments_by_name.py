"""Bind the arguments of a Triton kernel's call to the names of the kernel's parameters."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import NamedTuple

import torch

from xla_kernels.signature.schema import ArrayType
from xla_kernels.triton import descriptors
from xla_kernels.triton.kernel import tensors_in


@dataclasses.dataclass
class Arguments:
    """A kernel's arguments by name, including `outputs`, and the compiler's `options`."""

    values: dict[str, object]
    outputs: dict[str, ArrayType]
    written: list[str]
    options: dict[str, object]

    @property
    def operands(self) -> list[str]:
        """The operands' paths: "x", or "tensors.0" in a tuple."""
        return [path for path in tensors_in(self.values) if path not in self.outputs]

    @property
    def results(self) -> list[ArrayType]:
        """The outputs, followed by the new values of the tensors that are written to."""
        tensors = tensors_in(self.values)
        return [*self.outputs.values(), *(ArrayType.of(tensors[path]) for path in self.written)]

    @property
    def aliases(self) -> dict[int, int]:
        """The index of the operand whose buffer each of `results` has."""
        operands, count = self.operands, len(self.outputs)
        return {count + i: operands.index(path) for i, path in enumerate(self.written)}


class Given(NamedTuple):
    """The caller's arguments and descriptions of outputs, by the parameters' names."""

    values: dict[str, object]
    outputs: dict[str, object]


def by_name(
    name: str,
    parameters: Mapping[str, object],
    args: Sequence[object],
    outputs: Mapping[str, object] | Sequence[object],
    keywords: Mapping[str, object],
) -> Given:
    names = list(parameters)
    given = dict(zip(names, args, strict=False)) | dict(keywords)
    if len(args) > len(names):
        raise TypeError(f"{name}: {len(args)} arguments, but its parameters are {names}")
    unknown = [key for key in given if key not in parameters]
    if unknown:
        raise TypeError(f"{name}: there is no parameter {unknown[0]!r}; its parameters are {names}")
    if not isinstance(outputs, Mapping):
        free = [key for key in names[len(args) :] if key not in given]
        if len(outputs) > len(free):
            raise TypeError(f"{name}: {len(outputs)} outputs, but only {free} are left for them")
        outputs = dict(zip(free, outputs, strict=False))
    twice = [key for key in outputs if key in given or key not in parameters]
    if twice:
        raise TypeError(
            f"{name}: output {twice[0]!r} is not one of the remaining parameters: {names}"
        )
    return Given(given, dict(outputs))


def bind(
    name: str,
    parameters: Mapping[str, object],
    given: Given,
    aliases: Sequence[str],
    chosen: Mapping[str, object],
) -> Arguments:
    """Return the arguments of all parameters.

    Args:
        parameters: names and defaults; inspect.Parameter.empty for a parameter without a default.
        chosen: the values of an autotuned kernel's configuration.
    """
    types = {
        key: ArrayType.of(value.base if descriptors.is_descriptor(value) else value)
        for key, value in given.outputs.items()
    }
    placeholders = {}
    for key, type_ in types.items():
        empty, output = meta(type_), given.outputs[key]
        is_descriptor = descriptors.is_descriptor(output)
        placeholders[key] = descriptors.with_base(output, empty) if is_descriptor else empty
    values = {}
    for key, default in parameters.items():
        for source in (given.values, placeholders, chosen):
            if key in source:
                values[key] = source[key]
                break
        else:
            if default is inspect.Parameter.empty:
                raise TypeError(f"{name}: no argument for the parameter {key!r}")
            values[key] = default
    tensors = tensors_in(given.values)
    for key in aliases:
        if key not in tensors:
            raise TypeError(
                f"{name}: aliases names {key!r}, which is not one of its tensor arguments"
            )
    arguments = Arguments(values, types, list(aliases), {})
    if not arguments.operands:
        raise TypeError(f"{name}: none of its arguments is an XLA tensor")
    if not types and not aliases:
        raise TypeError(
            f"{name}: it has neither outputs nor aliases, so the call returns no tensor; "
            "pass one of them"
        )
    return arguments


def meta(type_: ArrayType) -> torch.Tensor:
    return torch.empty(tuple(type_.shape), dtype=type_.dtype, device="meta")


def bind_partly(
    parameters: Mapping[str, object], given: Given, chosen: Mapping[str, object]
) -> dict[str, object]:
    """Return the arguments for a heuristic: all that are known before it runs."""
    defaults = {k: v for k, v in parameters.items() if v is not inspect.Parameter.empty}
    return defaults | given.values | dict(chosen) | given.outputs


def computed(
    parameters: Mapping[str, object],
    given: Given,
    chosen: Mapping[str, object],
    sharding_rule: str | None,
) -> Given:
    """Return the arguments of a call with a sharding rule; some are computed from others."""
    functions = {k: v for k, v in given.values.items() if isinstance(v, FunctionType)}
    if sharding_rule is None or not functions:
        return given
    others = {k: v for k, v in given.values.items() if k not in functions}
    known = bind_partly(parameters, Given(others, given.outputs), chosen)
    return given._replace(values=given.values | {k: f(known) for k, f in functions.items()})
