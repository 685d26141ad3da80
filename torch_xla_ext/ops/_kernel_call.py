"""From an operator's arguments to a call of its kernel, on each kind of device."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import torch
import torch_xla

from torch_xla_ext import descriptor, registration
from torch_xla_ext.calls import custom_call
from torch_xla_ext.ops import _arguments
from torch_xla_ext.ops._arguments import Tensors, Value
from torch_xla_ext.schema import ArrayType

# A result's shape and dtype.
Result = tuple[Sequence[int], torch.dtype]
# An operator's arguments, by their names.
Arguments = dict[str, Value]


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """An operator, and how its kernel is called.

    Attributes:
        operator: whose arguments they are. What it returns are the kernel's first results.
        target, check, results, internal_results, attributes, payload: as of
            ops._registration.define.
        written: the names of the arguments whose buffers the kernel's first results are.
        name: what errors call the operator, if that is not its own name.
    """

    operator: torch._ops.OpOverload
    target: str
    check: Callable[..., None]
    results: Callable[..., Sequence[Result]]
    internal_results: Callable[..., Sequence[Result]] | None = None
    attributes: Callable[..., Mapping[str, object]] | None = None
    payload: Callable[..., bytes] | None = None
    written: Sequence[str] = ()
    name: str | None = None

    @cached_property
    def _defaults(self) -> dict[str, Value]:
        """All arguments in their order, None where there is no default."""
        return {a.name: a.default_value for a in self.operator._schema.arguments}

    @cached_property
    def operands(self) -> list[str]:
        """The arguments that are tensors."""
        arguments = self.operator._schema.arguments
        return [a.name for a in arguments if str(a.type) in ("Tensor", "Optional[Tensor]")]

    @cached_property
    def required(self) -> list[str]:
        """Those of them that may not be None."""
        return [a.name for a in self.operator._schema.arguments if str(a.type) == "Tensor"]

    def checked(self, values: tuple[Value, ...]) -> Arguments:
        """Returns the arguments, with the defaults that the dispatcher leaves out, after checks."""
        args = self._defaults | dict(zip(self._defaults, values, strict=False))
        operator = self.name or self.operator.name()
        for name in self.required:
            _arguments.require_present(operator, name, args[name])
        _arguments.require_one_device(
            operator, [(name, args[name]) for name in self.operands if args[name] is not None]
        )
        self.check(**args)
        return args

    def on_fake(self, *values: Value) -> Tensors:
        args = self.checked(values)
        first = self._inputs(args)[0]
        return self._returned(
            [first.new_empty(shape, dtype=dtype) for shape, dtype in self._returns(args)]
        )

    def on_xla(self, *values: Value) -> Tensors:
        args = self.checked(values)
        results = custom_call(
            self.target,
            self._inputs(args) if self.payload else [args[name] for name in self.operands],
            self._outputs(args),
            attributes=self.attributes(**args) if self.attributes else None,
            payload=self.payload(**args) if self.payload else None,
            aliases={result: self.operands.index(name) for result, name in enumerate(self.written)},
        )
        return self._returned(results)

    def on_cpu(self, *values: Value) -> Tensors:
        args = self._with_copies(self.checked(values))
        return self._returned(self._run("Host", args))

    def on_cuda(self, *values: Value) -> Tensors:
        args = self._with_copies(self.checked(values))
        return self._returned(self._run_on_stream(args))

    def in_place_on_cpu(self, *values: Value) -> None:
        self._run("Host", self.checked(values))

    def in_place_on_cuda(self, *values: Value) -> None:
        self._run_on_stream(self.checked(values))

    def _inputs(self, args: Arguments) -> list[torch.Tensor]:
        return [args[name] for name in self.operands if args[name] is not None]

    def _returns(self, args: Arguments) -> list[Result]:
        """The kernel's results that the operator returns, or writes."""
        written = [(args[name].shape, args[name].dtype) for name in self.written]
        return written + list(self.results(**args))

    def _outputs(self, args: Arguments) -> list[Result]:
        """All results of the kernel."""
        internal = self.internal_results(**args) if self.internal_results else ()
        return [*self._returns(args), *internal]

    def _returned(self, results: Sequence[torch.Tensor]) -> Tensors:
        count = len(self.operator._schema.returns)
        return results[0] if count == 1 else tuple(results[:count])

    def _with_copies(self, args: Arguments) -> Arguments:
        """Copies what would be written to."""
        contiguous = torch.contiguous_format
        copies = {name: args[name].clone(memory_format=contiguous) for name in self.written}
        return args | copies

    def _run(self, platform: str, args: Arguments, stream: int = 0) -> Sequence[torch.Tensor]:
        """Runs the kernel without XLA, and writes to the arguments that it writes to."""
        device = self._inputs(args)[0].device
        results = [args[name] for name in self.written] + [
            torch.empty(shape, dtype=dtype, device=device)
            for shape, dtype in self._outputs(args)[len(self.written) :]
        ]
        torch_xla._XLAC._xla_call_custom_call_target(
            self.target,
            platform,
            [self._operand(tensor, results) for tensor in self._inputs(args)],
            self.payload(**args) if self.payload else self._descriptor(args, results),
            results,
            stream,
        )
        return results

    def _operand(self, tensor: torch.Tensor, results: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the kernel reads: a copy of what lies in a tensor that it writes to."""
        written = results[: len(self.written)]
        if any(tensor is not result and _arguments.overlap(tensor, result) for result in written):
            return tensor.clone(memory_format=torch.contiguous_format)
        return tensor.contiguous()

    def _run_on_stream(self, args: Arguments) -> Sequence[torch.Tensor]:
        with torch.cuda.device(self._inputs(args)[0].device):
            return self._run("CUDA", args, torch.cuda.current_stream().cuda_stream)

    def _descriptor(self, args: Arguments, results: Sequence[torch.Tensor]) -> bytes:
        tensors = [args[name] for name in self.operands] + [*results]
        arrays = [None if tensor is None else ArrayType.of(tensor) for tensor in tensors]
        attributes = self.attributes(**args) if self.attributes else {}
        return descriptor.pack(registration.schema(self.target), arrays, attributes)
