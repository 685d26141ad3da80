"""From an operator's arguments to a call of its kernel, on each kind of device."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
import torch_xla

from torch_xla_ext import descriptor, registration
from torch_xla_ext.calls import custom_call
from torch_xla_ext.operators import arguments
from torch_xla_ext.operators.arguments import Tensors, Value
from torch_xla_ext.schema import ArrayType, Schema

# A result's shape and dtype.
Result = tuple[Sequence[int], torch.dtype]

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Checked(NamedTuple):
    """An operator's arguments, by their names, after all checks; and what follows from them.

    Attributes:
        parameters: the kernel's, if it is made with torch_xla_ext/kernel.h.
        results: the shapes and dtypes of the kernel's results, or of those that were asked for.
    """

    args: dict[str, Value]
    parameters: Mapping[str, object]
    results: Sequence[Result]


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """An operator, and how its kernel is called.

    Attributes:
        operator: whose arguments they are. What it returns are the kernel's first results.
        target, check, attributes, sizes, results, payload: as of `define_operator`.
        schema: of a kernel that is made with torch_xla_ext/kernel.h.
        in_place: of each result that is in an argument's buffer, the argument's name.
    """

    operator: torch._ops.OpOverload
    target: str
    schema: Schema | None
    check: Callable[..., None] | None = None
    attributes: Callable[..., Mapping[str, object]] | None = None
    sizes: Callable[..., Mapping[str, int]] | None = None
    results: Callable[..., Sequence[Result]] | None = None
    payload: Callable[..., bytes] | None = None
    in_place: Mapping[int, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """What errors call the operator."""
        return self.schema.caller if self.schema else self.operator.name()

    @cached_property
    def _defaults(self) -> dict[str, Value]:
        """All arguments in their order, None where there is no default."""
        return {a.name: a.default_value for a in self.operator._schema.arguments}

    @cached_property
    def operands(self) -> list[str]:
        """The arguments that are tensors."""
        schema = self.operator._schema.arguments
        return [a.name for a in schema if str(a.type) in ("Tensor", "Optional[Tensor]")]

    @cached_property
    def required(self) -> list[str]:
        """Those of them that may not be None."""
        return [a.name for a in self.operator._schema.arguments if str(a.type) == "Tensor"]

    @cached_property
    def _num_returned(self) -> int:
        return len(self.operator._schema.returns)

    def checked(self, values: Sequence[Value], num_results: int = 0) -> Checked:
        """Checks an operator's arguments, without the defaults that the dispatcher leaves out.

        Args:
            num_results: of how many results to say what they are.
        """
        args = self._defaults | dict(zip(self._defaults, values, strict=False))
        for name in self.required:
            arguments.require_present(self.name, name, args[name])
        present = [(name, args[name]) for name in self.operands if args[name] is not None]
        arguments.require_one_device(self.name, present)
        if self.schema is None:
            if self.check is not None:
                self.check(**args)
            return Checked(args, {}, self.results(**args) if num_results else [])
        tensors = [args[name] for name in self.operands]
        arrays = tuple(None if t is None else ArrayType(t.shape, t.dtype) for t in tensors)
        if self.check is not None or self.attributes is not None:  # which may rely on it
            self.schema.infer(arrays)
        if self.check is not None:
            self.check(**args)
        parameters = self._parameters(args)
        sizes = self.schema.sizes(parameters)
        if num_results and (names := self.schema.open_sizes(num_results)):
            found = self.sizes(**args)
            sizes += tuple((name, found[name]) for name in names)
        return Checked(args, parameters, self.schema.infer(arrays, sizes, num_results))

    def _parameters(self, args: Mapping[str, Value]) -> Mapping[str, object]:
        """The kernel's parameters: the arguments of their names, and `attributes`."""
        values = {p.name: args[p.name] for p in self.schema.parameters if p.name in args}
        if self.attributes is not None:
            values |= self.attributes(**args)
        if any(isinstance(value, _SYMBOLS) for value in values.values()):
            return values  # which are checked when they are known
        return descriptor.parameter_values(self.schema, values)

    def on_fake(self, *values: Value) -> Tensors:
        args, _, results = self.checked(values, self._num_returned)
        first = self._inputs(args)[0]
        return self._returned(
            [first.new_empty(shape, dtype=dtype) for shape, dtype in results[: self._num_returned]]
        )

    def on_xla(self, *values: Value) -> Tensors:
        args, parameters, results = self.checked(values, self._num_results)
        tensors = [args[name] for name in self.operands]
        if self.payload is not None:
            tensors = self._inputs(args)
        aliases = {result: self.operands.index(name) for result, name in self.in_place.items()}
        return self._returned(
            custom_call(
                self._target(),
                tensors,
                results,
                attributes=parameters if self.schema else None,
                payload=self.payload(**args) if self.payload else None,
                aliases=aliases,
            )
        )

    def on_cpu(self, *values: Value) -> Tensors:
        return self._returned(self._run("Host", self._with_copies(self._checked(values))))

    def on_cuda(self, *values: Value) -> Tensors:
        return self._returned(self._run_on_stream(self._with_copies(self._checked(values))))

    def in_place_on_cpu(self, *values: Value) -> None:
        self._run("Host", self._checked(values))

    def in_place_on_cuda(self, *values: Value) -> None:
        self._run_on_stream(self._checked(values))

    @cached_property
    def _num_results(self) -> int:
        """Of the kernel; at least one."""
        return len(self.schema.results) if self.schema else 1

    def _checked(self, values: Sequence[Value]) -> Checked:
        return self.checked(values, self._num_results)

    def _target(self, platform: str | None = None) -> str:
        """The name of the kernel that the operator was defined for."""
        if self.schema is None:
            return self.target
        return registration.name_with_schema(self.target, self.schema.text, platform=platform)

    def _inputs(self, args: Mapping[str, Value]) -> list[torch.Tensor]:
        return [args[name] for name in self.operands if args[name] is not None]

    def _returned(self, results: Sequence[torch.Tensor]) -> Tensors:
        if self._num_returned == 1:
            return results[0]
        return tuple(results[: self._num_returned])

    def _with_copies(self, checked: Checked) -> Checked:
        """Copies what would be written to."""
        contiguous = torch.contiguous_format
        copies = {
            name: checked.args[name].clone(memory_format=contiguous)
            for name in self.in_place.values()
        }
        return checked._replace(args=checked.args | copies)

    def _run(self, platform: str, checked: Checked, stream: int = 0) -> Sequence[torch.Tensor]:
        """Runs the kernel without XLA, and writes to the arguments that it writes to."""
        args, inputs = checked.args, self._inputs(checked.args)
        results = [
            args[self.in_place[i]]
            if i in self.in_place
            else torch.empty(shape, dtype=dtype, device=inputs[0].device)
            for i, (shape, dtype) in enumerate(checked.results)
        ]
        written = [results[i] for i in self.in_place]
        torch_xla._XLAC._xla_call_custom_call_target(
            self._target(platform),
            platform,
            [_operand(tensor, written) for tensor in inputs],
            self.payload(**args) if self.payload else self._descriptor(checked),
            results,
            stream,
        )
        return results

    def _run_on_stream(self, checked: Checked) -> Sequence[torch.Tensor]:
        with torch.cuda.device(self._inputs(checked.args)[0].device):
            return self._run("CUDA", checked, torch.cuda.current_stream().cuda_stream)

    def _descriptor(self, checked: Checked) -> bytes:
        tensors = [checked.args[name] for name in self.operands]
        arrays = [None if t is None else ArrayType(t.shape, t.dtype) for t in tensors]
        return descriptor.pack(self.schema, arrays + list(checked.results), checked.parameters)


def _operand(tensor: torch.Tensor, written: Sequence[torch.Tensor]) -> torch.Tensor:
    """What the kernel reads: a copy of what lies in a tensor that it writes to."""
    if any(tensor is not other and arguments.overlap(tensor, other) for other in written):
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()
