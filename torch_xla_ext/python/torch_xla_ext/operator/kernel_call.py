"""Turn an operator's arguments into a call of its kernel, on each kind of device."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
import torch_xla

from torch_xla_ext import sharding
from torch_xla_ext.custom_call import (
    Request,
    array_of,
    call_operator,
    local_call,
    prepare_operator,
    tensors_of,
)
from torch_xla_ext.operator import sharding_rule
from torch_xla_ext.registry import registration
from torch_xla_ext.sharding import rule as rules
from xla_kernels.operator import tensor_checks
from xla_kernels.operator.checked import Checked, OperatorCall
from xla_kernels.operator.tensor_checks import Tensors, Value
from xla_kernels.signature import untyped_payload
from xla_kernels.signature.schema import ArrayType

# Targets, platforms and APIs that are known to be registered; this is never undone.
_registered: set[tuple[str, str, str]] = set()


class KernelCall(OperatorCall):
    """Calls the kernel of an operator, on each kind of device."""

    def check_declaration(self, where: str) -> None:
        if callable(self.sharding_rule):
            return  # depends on a call's arguments
        try:
            self._rule({})
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where} {error}") from None

    def _rule(self, args: Mapping[str, Value]) -> sharding.Rule | None:
        """Return the sharding rule for a call with these arguments.

        Raises:
            TypeError, ValueError: the rule does not fit the operator.
        """
        text = self.sharding_rule
        if callable(text):
            text = text(**args)
        if text is None or text in self._rules:
            return self._rules.get(text)
        rule = rules.parse(text)
        sharding_rule.check(self, rule)
        return self._rules.setdefault(text, rule)

    @cached_property
    def _rules(self) -> dict[str, sharding.Rule]:
        """The checked rules, by their texts."""
        return {}

    def on_xla(self, *values: Value) -> Tensors:
        return self._returned(call_operator(*self._custom_call(values)))

    def prepared(self, *values: Value) -> object | None:
        """Prepare a call, once for each set of shapes, dtypes and values."""
        return prepare_operator(*self._custom_call(values))

    def _custom_call(
        self, values: Sequence[Value]
    ) -> tuple[Request, sharding.PartitionedCall | None]:
        """Return the arguments of call_operator."""
        checked = self.checked(values, self._num_results)
        request = self._request(checked)
        if torch_xla.runtime.is_spmd() and not checked.has_symbols(self.operands):
            return request, self._partitioned(checked)
        return request, None

    def _request(self, checked: Checked) -> Request:
        """Return the call for these operands."""
        tensors = [checked.args[name] for name in self.operands]
        name, api = self.target, None
        if self.schema is not None:
            self._check_registered(registration.device_platform(), ("ffi", "untyped"))
            name, api = registration.call_with_schema(self.target, self.schema.text)
        if self.payload is not None:
            tensors = [tensor for tensor in tensors if tensor is not None]
        return Request(
            name,
            tensors_of(name, tensors),
            checked.results,
            attributes=checked.parameters if self.schema else None,
            payload=self.payload(**checked.args) if self.payload else None,
            api=api,
            aliases=self._aliases,
            traits=self.traits,
            is_checked=self.schema is not None and not checked.has_symbols(self.operands),
        )

    @cached_property
    def _aliases(self) -> dict[int, int]:
        """The index of the operand whose buffer each result has."""
        return {result: self.operands.index(arg) for result, arg in self.in_place.items()}

    def _partitioned(self, checked: Checked) -> sharding.PartitionedCall:
        """Return the call in a program for several devices.

        Raises:
            NotImplementedError: a result in place is not returned.
        """
        if hidden := [name for i, name in self.in_place.items() if i >= self._num_returned]:
            raise NotImplementedError(
                f"{self.name}: {hidden[0]} is written in place, but its new value is not returned; "
                "return it, so that the call can be in a program for several devices"
            )
        args = checked.args
        dtypes = {name: args[name].dtype for name in self.operands if args[name] is not None}
        values = {name: None if name in dtypes else value for name, value in args.items()}
        environment = [os.environ.get(name) for name in self.environment or ()]

        def local(
            operands: Sequence[tuple[int, ...] | None], _results: Sequence[tuple[int, ...]]
        ) -> sharding.LocalCall:
            own = {
                name: torch.empty(shape, dtype=dtypes[name], device="meta")
                for name, shape in zip(self.operands, operands, strict=True)
                if shape is not None
            }
            own_values = tuple((values | own).values())
            return local_call(self._request(self.checked(own_values, self._num_results)))

        shapes = checked.results[: self._num_returned]
        return sharding.PartitionedCall(
            self.name,
            self._rule(args),
            {name: None if args[name] is None else array_of(args[name]) for name in self.operands},
            [array_of(ArrayType(tuple(shape), dtype)) for shape, dtype in shapes],
            self._aliases,
            local,
            owner=self,
            values=(tuple(values.items()), tuple(environment)),
        )

    @property
    def cached_environment(self) -> Sequence[str] | None:
        """The environment variables that `prepared` depends on; None if they are unknown."""
        rule = self.sharding_rule if callable(self.sharding_rule) else None
        functions = (self.check, self.attributes, self.sizes, self.results, self.payload, rule)
        if self.environment is None and any(function is not None for function in functions):
            return None
        return list(self.environment or ())

    def on_cpu(self, *values: Value) -> Tensors:
        return self._returned(self._run("Host", self._with_copies(self._checked(values))))

    def on_cuda(self, *values: Value) -> Tensors:
        return self._returned(self._run_on_stream(self._with_copies(self._checked(values))))

    def in_place_on_cpu(self, *values: Value) -> None:
        self._run("Host", self._checked(values))

    def in_place_on_cuda(self, *values: Value) -> None:
        self._run_on_stream(self._checked(values))

    def _checked(self, values: Sequence[Value]) -> Checked:
        return self.checked(values, self._num_results)

    def _target(self, platform: str) -> str:
        """Return the kernel's name for calls with PyTorch's own tensors."""
        if self.schema is None:
            return self.target
        self._check_registered(platform, ("untyped",))
        return registration.name_with_schema(self.target, self.schema.text, platform=platform)

    def _check_registered(self, platform: str, apis: Sequence[str]) -> None:
        if any(self._is_registered(api, platform) for api in apis):
            return
        device = {"Host": "the CPU", "CUDA": "CUDA"}[platform]
        if self._is_registered("ffi", platform):
            raise NotImplementedError(
                f"{self.name}: the kernel {self.target} has only an FFI entry for {device}, "
                "which only XLA can call; call the operator with XLA tensors"
            )
        raise NotImplementedError(
            f"{self.name}: the kernel {self.target} is not registered for {device}; register a "
            "library that has it (torch_xla_ext.register_kernel), or call the operator with "
            "tensors on another device"
        )

    def _is_registered(self, api: str, platform: str) -> bool:
        key = self.target, platform, api
        if key in _registered:
            return True
        if registration.is_registered(*key):
            _registered.add(key)
            return True
        return False

    def _with_copies(self, checked: Checked) -> Checked:
        """Return the call with copies of the arguments that the kernel writes to."""
        contiguous = torch.contiguous_format
        copies = {
            name: checked.args[name].clone(memory_format=contiguous)
            for name in self.in_place.values()
        }
        return checked._replace(args=checked.args | copies)

    def _run(self, platform: str, checked: Checked, stream: int = 0) -> Sequence[torch.Tensor]:
        """Run the kernel without XLA, and update the arguments that it writes to."""
        args, inputs = checked.args, self._inputs(checked.args)
        results = [
            args[self.in_place[i]]
            if i in self.in_place
            else torch.empty(shape, dtype=dtype, device=inputs[0].device)
            for i, (shape, dtype) in enumerate(checked.results)
        ]
        written = [results[i] for i in self.in_place]
        operands = [_operand(tensor, written) for tensor in inputs]
        if self.schema is not None and self.schema.has_layouts:
            self._run_with_layouts(platform, checked, operands, results, stream)
        else:
            self._run_target(platform, checked, operands, results, stream)
        return results

    def _run_with_layouts(
        self,
        platform: str,
        checked: Checked,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        stream: int,
    ) -> None:
        """Run the kernel with arrays in the signature's layouts; `results` are row-major.

        The target's function receives such an array as a tensor with its dimensions in memory
        order.
        """
        layouts = self.schema.operand_layouts([checked.args[name] for name in self.operands])
        ordered = [_permuted(each, layouts.get(i)) for i, each in enumerate(operands)]
        outputs = []
        for i, result in enumerate(results):
            order = self.schema.result_layouts.get(i)
            shared = [ordered[j] for j, each in enumerate(operands) if each is result]
            outputs.append(shared[0] if shared else _permuted(result, order))
        self._run_target(platform, checked, ordered, outputs, stream)
        for i, (result, output) in enumerate(zip(results, outputs, strict=True)):
            if (order := self.schema.result_layouts.get(i)) is not None:
                result.permute(*order).copy_(output)

    def _run_target(
        self,
        platform: str,
        checked: Checked,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        stream: int,
    ) -> None:
        """Call the target's function with contiguous tensors."""
        target = self._target(platform)
        payload = self.payload(**checked.args) if self.payload else self._untyped_payload(checked)
        torch_xla._XLAC._xla_call_custom_call_target(
            target, platform, operands, payload, results, stream
        )

    def _run_on_stream(self, checked: Checked) -> Sequence[torch.Tensor]:
        with torch.cuda.device(self._inputs(checked.args)[0].device):
            return self._run("CUDA", checked, torch.cuda.current_stream().cuda_stream)

    def _untyped_payload(self, checked: Checked) -> bytes:
        tensors = [checked.args[name] for name in self.operands]
        arrays = [None if t is None else ArrayType(t.shape, t.dtype) for t in tensors]
        return untyped_payload.encode(
            self.schema, arrays + list(checked.results), checked.parameters
        )


def _permuted(tensor: torch.Tensor, order: Sequence[int] | None) -> torch.Tensor:
    """Return a contiguous tensor with its dimensions in `order`; the tensor itself for None."""
    return tensor if order is None else tensor.permute(*order).contiguous()


def _operand(tensor: torch.Tensor, written: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the operand for the kernel: a copy if it shares memory with a written tensor."""
    if any(tensor is not other and tensor_checks.overlap(tensor, other) for other in written):
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()
