"""Check calls against a kernel's signature, and find the arguments for its parameters."""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from xla_kernels import launch as launches
from xla_kernels.cuda_source import cpp_types
from xla_kernels.cuda_source.cpp_types import Argument, Parameter, label
from xla_kernels.signature import check, parse, untyped_payload
from xla_kernels.signature.dtypes import xla_name
from xla_kernels.signature.ffi_attributes import PARAMETER_TYPES
from xla_kernels.signature.schema import ArrayType, Schema

_NONE = "none"
_SIZE = ".size"
_STRIDE = re.compile(r"(\w+)\.stride\[(\d+)\]")


@dataclass(frozen=True)
class Bound:
    """A call's checked arguments.

    Attributes:
        values: arrays' types, parameters and sizes, by name; None for an absent operand.
        operands: each present operand's index among the present ones.
        results: each result's index.
        dtypes: the values of the signature's dtype variables.
    """

    values: dict[str, object]
    operands: dict[str, int]
    results: dict[str, int]
    dtypes: dict[str, torch.dtype]

    def with_config(self, config: Mapping[str, object]) -> Bound:
        """Return the arguments with the values of one of the kernel's configurations."""
        return dataclasses.replace(self, values={**self.values, **config}) if config else self


@dataclass(frozen=True)
class Signature:
    """The operands, results and parameters of a call, and the kernel's own parameters.

    Attributes:
        schema: the schema that calls are checked against.
        arguments: words for the kernel's parameters; None if the parameters' names are the words.
    """

    schema: Schema
    arguments: tuple[str, ...] | None

    @staticmethod
    def parse(
        name: str, signature: str, parameters: str, arguments: str | Sequence[str] | None
    ) -> Signature:
        """Parse a signature.

        Raises:
            ValueError: it cannot be parsed, or `arguments` has a word that is not in it.
        """
        match = re.match(r"\s*(\w*)\s*(?=\()", signature)
        target = (match and match[1]) or re.split(r"[<(]", name)[0].rsplit("::", 1)[-1].strip()
        schema = parse.parse(target, signature[match.end() if match else 0 :], parameters)
        where = f"cuda_kernel {name!r}"
        for parameter in schema.parameters:
            if parameter.type == "str" or parameter.is_array:
                raise ValueError(
                    f"{where}: parameter {parameter.name}: a kernel cannot receive a "
                    f"{parameter.type}; pass an array as an operand"
                )
        if arguments is None:
            return Signature(schema, None)
        words = tuple(arguments.split() if isinstance(arguments, str) else arguments)
        result = Signature(schema, words)
        result.check_words(where, words)
        return result

    def check_words(self, where: str, words: Sequence[str]) -> None:
        """Raise ValueError for unknown words, and for arrays that no word names."""
        schema = self.schema
        ranks = {
            each.name: 0 if any(dim.star for dim in each.dims) else len(each.dims)
            for each in schema.arguments
        }
        arrays = set(ranks)
        numbers = {dim.name for argument in schema.arguments for dim in argument.dims if dim.name}
        numbers -= {d.name for argument in schema.arguments for d in argument.dims if d.star}
        numbers |= {parameter.name for parameter in schema.parameters}
        known = arrays | numbers | {_NONE} | {name + _SIZE for name in arrays}
        for word in words:
            stride = _STRIDE.fullmatch(word)
            if stride is not None and int(stride[2]) < ranks.get(stride[1], 0):
                continue
            if word not in known:
                raise ValueError(
                    f"{where}: the kernel's parameter {word!r} is not in the signature, which has "
                    f"{', '.join(sorted(arrays))}, {', '.join(sorted(numbers)) or 'no numbers'}, "
                    f"{min(arrays)}{_SIZE} and {min(arrays)}.stride[0]; pass arguments='…', a word "
                    "for each parameter"
                )
        if missing := arrays - set(words):
            raise ValueError(
                f"{where}: {min(missing)} is in the signature, but not among the arguments that "
                f"the kernel receives: {' '.join(words)}"
            )

    def type_options(self) -> dict[str, list[str]]:
        """Return the C++ types that each dtype variable may stand for."""
        return {
            name: [cpp_types.CPP_NAMES[option] for option in self.schema.dtype_options(name)]
            for name in self.schema.variables
        }

    def checked_arguments(
        self, args: Sequence[object]
    ) -> tuple[list[torch.Tensor | None], dict[str, object]]:
        """Return a call's operands and parameters, from its positional arguments."""
        schema = self.schema
        names = [each.name for each in (*schema.operands, *schema.parameters)]
        if len(args) != len(names):
            raise TypeError(
                f"{schema.caller}: expected {len(names)} arguments, {', '.join(names)}, but got "
                f"{len(args)}; the signature is {schema.signature}"
            )
        tensors = list(args[: len(schema.operands)])
        for operand, tensor in zip(schema.operands, tensors, strict=True):
            if tensor is not None and not isinstance(tensor, torch.Tensor):
                raise TypeError(
                    f"{schema.caller}: {operand.label}: expected an XLA tensor but got one of type "
                    f"{type(tensor).__name__}"
                )
        values = dict(zip(names[len(tensors) :], args[len(tensors) :], strict=True))
        return tensors, untyped_payload.parameter_values(schema, values)

    def results(
        self, operands: tuple[ArrayType | None, ...], parameters: Mapping[str, object]
    ) -> list[ArrayType]:
        """Check the operands and parameters, and return the results' types."""
        schema = self.schema
        if unknown := schema.open_sizes():
            raise TypeError(
                f"{schema.caller}: the size {unknown[0]} of its results does not follow from "
                "operands or parameters; call it by define_operator(…, sizes=…)"
            )
        return list(schema.infer(operands, schema.sizes(parameters), len(schema.results)))

    def aliases(self, operands: Sequence[ArrayType | None]) -> dict[int, int]:
        """Return the operand's index, among the present ones, for each result in its buffer."""
        return {
            number: sum(operand is not None for operand in operands[: result.alias])
            for number, result in enumerate(self.schema.results)
            if result.alias is not None
        }

    def bind(
        self,
        operands: Sequence[ArrayType | None],
        results: Sequence[ArrayType],
        parameters: Mapping[str, object],
    ) -> Bound:
        """Bind a checked call's arguments to their names in the signature."""
        schema = self.schema
        arrays = [*operands, *results]
        values: dict[str, object] = dict(check.sizes(schema, arrays, schema.sizes(parameters)))
        values |= parameters
        dtypes = {}
        for argument, array in zip(schema.arguments, arrays, strict=True):
            values[argument.name] = array
            if array is not None and argument.dtype in schema.variables:
                dtypes[argument.dtype] = array.dtype
        present = [
            operand.name
            for operand, array in zip(schema.operands, operands, strict=True)
            if array is not None
        ]
        return Bound(
            values,
            {name: i for i, name in enumerate(present)},
            {result.name: i for i, result in enumerate(schema.results)},
            dtypes,
        )

    def expression(self, name: str, bound: Bound) -> str:
        """Return the name expression of the instance for a call."""
        if "{" not in name:
            return name
        fields = {
            key: int(value) if isinstance(value, bool) else value
            for key, value in bound.values.items()
            if isinstance(value, (int, str))
        }
        for variable, dtype in bound.dtypes.items():
            fields[variable] = cpp_types.CPP_NAMES[xla_name(dtype)]
        try:
            return name.format_map(fields)
        except KeyError as error:
            raise ValueError(
                f"{self.schema.caller}: {{{error.args[0]}}} in the kernel's name {name!r} is "
                "neither a dtype variable, a size, nor an integer parameter of this call"
            ) from None

    def may_be(self, name: str, expression: str, bound: Bound) -> bool:
        """Return whether `name` becomes this expression for a call with these dtypes."""
        types = {
            variable: cpp_types.CPP_NAMES.get(xla_name(dtype), "")
            for variable, dtype in bound.dtypes.items()
        }
        pattern = "".join(
            re.escape(text) + ("" if field is None else re.escape(types[field]))
            if field is None or field in types
            else re.escape(text) + ".+"
            for text, field, _, _ in string.Formatter().parse(name)
        )
        return re.fullmatch(pattern, expression) is not None

    def arguments_for(
        self, where: str, parameters: Sequence[Parameter], bound: Bound
    ) -> list[Argument]:
        """Return the arguments of the kernel's parameters, checked against their types."""
        words = self.arguments
        if words is None:
            words = tuple(parameter.name or "" for parameter in parameters)
            if "" in words:
                raise ValueError(
                    f"{where}: the names of the kernel's parameters are not known; pass "
                    "arguments='…', a word for each parameter"
                )
            self.check_words(where, words)
        if len(words) != len(parameters):
            types = ", ".join(parameter.type for parameter in parameters)
            raise ValueError(
                f"{where}: arguments has {len(words)} words, but the kernel has "
                f"{len(parameters)} parameters: {types}"
            )
        return [
            self._argument(f"{where}: {label(parameters, i)}", parameters[i], word, bound)
            for i, word in enumerate(words)
        ]

    def _argument(self, where: str, parameter: Parameter, word: str, bound: Bound) -> Argument:
        if word in bound.results:
            array = bound.values[word]
            parameter.check_dtype(where, array.dtype)
            if not parameter.is_written:
                raise TypeError(
                    f"{where} is {parameter.type}, but a result needs a non-const pointer"
                )
            return Argument(array, launches.result(bound.results[word]))
        if word in bound.operands:
            parameter.check_dtype(where, bound.values[word].dtype)
            return Argument(bound.values[word], launches.operand(bound.operands[word]))
        if word == _NONE:
            return Argument(None)
        if word.endswith(_SIZE):
            array = bound.values[word.removesuffix(_SIZE)]
            return Argument(array.size if array is not None else 0)
        if (stride := _STRIDE.fullmatch(word)) is not None:
            array, dim = bound.values[stride[1]], int(stride[2])
            declared = next(each for each in self.schema.arguments if each.name == stride[1])
            return Argument(declared.strides(array.shape)[dim] if array is not None else 0)
        if word not in bound.values:
            raise ValueError(
                f"{where}: the size {word} is unknown: no operand or parameter gives it"
            )
        value = bound.values[word]
        # Kernels that are compiled for their arguments' types receive numbers of the declared
        # types.
        types = [p.type for p in self.schema.parameters if p.name == word and value is not None]
        return Argument(PARAMETER_TYPES[types[0]](value) if types else value)
