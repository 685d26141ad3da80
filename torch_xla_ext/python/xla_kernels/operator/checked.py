"""Check an operator's arguments and infer its results, without calling the kernel."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch

from xla_kernels.operator import tensor_checks
from xla_kernels.operator.tensor_checks import Tensors, Value
from xla_kernels.signature import untyped_payload
from xla_kernels.signature.schema import ArrayType, Schema, Sizes
from xla_kernels.traits import NONE, Traits

if TYPE_CHECKING:
    from xla_kernels.cuda_source.kernel import CudaKernel

# A result's shape and dtype.
Result = tuple[Sequence[int], torch.dtype]

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _is_symbolic(value: Value) -> bool:
    """Return whether a number, or a number in a list, is symbolic."""
    if isinstance(value, (list, tuple)):
        return any(isinstance(item, _SYMBOLS) for item in value)
    return isinstance(value, _SYMBOLS)


class Checked(NamedTuple):
    """The checked arguments of an operator by name, and values derived from them.

    Attributes:
        parameters: the kernel's parameters, if it uses torch_xla_ext/kernel.h.
        results: the shapes and dtypes of the kernel's results, or of the requested ones.
    """

    args: dict[str, Value]
    parameters: Mapping[str, object]
    results: Sequence[Result]

    def has_symbols(self, operands: Sequence[str]) -> bool:
        """Return whether a size or parameter is symbolic, and so is only checked at run time."""
        shapes = [shape for shape, _ in self.results]
        shapes += [self.args[name].shape for name in operands if self.args[name] is not None]
        return any(map(_is_symbolic, itertools.chain(self.parameters.values(), *shapes)))


@dataclasses.dataclass(frozen=True)
class OperatorCall:
    """An operator that calls a kernel, and checks its arguments. A front end adds the calls.

    Attributes:
        operator: the operator, which returns the kernel's first results.
        target: the kernel's name.
        schema: the kernel's schema, if it uses torch_xla_ext/kernel.h or is a `cuda_kernel`.
        check, attributes, sizes, results, payload, traits, environment, sharding_rule: as in
            `define_operator`.
        in_place: the argument's name for each result in an argument's buffer.
        kernel: the `cuda_kernel`, if the target is one.
    """

    operator: torch._ops.OpOverload
    target: str
    schema: Schema | None
    check: Callable[..., None] | None = None
    attributes: Callable[..., Mapping[str, object]] | None = None
    sizes: Callable[..., Mapping[str, int]] | None = None
    results: Callable[..., Sequence[Result]] | None = None
    payload: Callable[..., bytes] | None = None
    traits: Traits = NONE
    environment: Sequence[str] | None = None
    sharding_rule: str | Callable[..., str] | None = None
    in_place: Mapping[int, str] = dataclasses.field(default_factory=dict)
    kernel: CudaKernel | None = None

    @property
    def name(self) -> str:
        """The operator's name in errors."""
        return self.schema.caller if self.schema else self.operator.name()

    @cached_property
    def _defaults(self) -> dict[str, Value]:
        """The defaults of all arguments in order, None for an argument without a default."""
        return {a.name: a.default_value for a in self.operator._schema.arguments}

    @cached_property
    def operands(self) -> list[str]:
        """The arguments that are tensors."""
        schema = self.operator._schema.arguments
        return [a.name for a in schema if str(a.type) in ("Tensor", "Optional[Tensor]")]

    @cached_property
    def required(self) -> list[str]:
        """The tensor arguments that may not be None."""
        return [a.name for a in self.operator._schema.arguments if str(a.type) == "Tensor"]

    @cached_property
    def _num_returned(self) -> int:
        return len(self.operator._schema.returns)

    def checked(self, values: Sequence[Value], num_results: int = 0) -> Checked:
        """Check an operator's arguments, which may lack the defaults that the dispatcher omits.

        Args:
            num_results: how many of the kernel's results to infer.
        """
        args = self._defaults | dict(zip(self._defaults, values, strict=False))
        for name in self.required:
            tensor_checks.require_present(self.name, name, args[name])
        present = [(name, args[name]) for name in self.operands if args[name] is not None]
        tensor_checks.require_one_device(self.name, present)
        if self.schema is None:
            if self.check is not None:
                self.check(**args)
            return Checked(args, {}, self.results(**args) if num_results else [])
        tensors = [args[name] for name in self.operands]
        arrays = tuple(None if t is None else ArrayType(t.shape, t.dtype) for t in tensors)
        if self.check is not None or self.attributes is not None:  # these functions may rely on it
            self.schema.infer(arrays)
        if self.check is not None:
            self.check(**args)
        parameters = self._parameters(args)
        sizes = self.schema.sizes(parameters)
        if num_results:
            sizes += self._open_sizes(args, arrays, self.schema.open_sizes(num_results))
        return Checked(args, parameters, self.schema.infer(arrays, sizes, num_results))

    def _open_sizes(
        self, args: Mapping[str, Value], arrays: tuple[ArrayType | None, ...], names: Sequence[str]
    ) -> Sizes:
        given = self.sizes(**args) if names and self.sizes is not None else {}
        return tuple(
            (name, given[name] if name in given else self.schema.computed_size(name, arrays))
            for name in names
        )

    def _parameters(self, args: Mapping[str, Value]) -> Mapping[str, object]:
        """Return the kernel's parameters: the arguments with their names, and `attributes`."""
        values = {p.name: args[p.name] for p in self.schema.parameters if p.name in args}
        if self.attributes is not None:
            values |= self.attributes(**args)
        if any(map(_is_symbolic, values.values())):
            return values  # symbolic values are checked at run time
        return untyped_payload.parameter_values(self.schema, values)

    @cached_property
    def _num_results(self) -> int:
        """The number of the kernel's results; at least one."""
        return len(self.schema.results) if self.schema else 1

    def check_declaration(self, where: str) -> None:
        """Check the operator against further requirements of the front end.

        Args:
            where: prefix of error messages.

        Raises:
            TypeError, ValueError: the front end cannot call the operator.
        """

    def on_fake(self, *values: Value) -> Tensors:
        args, _, results = self.checked(values, self._num_returned)
        first = self._inputs(args)[0]
        return self._returned(
            [first.new_empty(shape, dtype=dtype) for shape, dtype in results[: self._num_returned]]
        )

    def _inputs(self, args: Mapping[str, Value]) -> list[torch.Tensor]:
        return [args[name] for name in self.operands if args[name] is not None]

    def _returned(self, results: Sequence[torch.Tensor]) -> Tensors:
        if self._num_returned == 1:
            return results[0]
        return tuple(results[: self._num_returned])
