"""Turns an operator's arguments into a call of its kernel, on each kind of device."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
import torch_xla

from torch_xla_ext import sharding
from torch_xla_ext.custom_call import call_operator, prepare
from torch_xla_ext.operator import sharding_rule
from torch_xla_ext.registry import registration
from torch_xla_ext.sharding import rule as rules
from xla_kernels.operator import tensor_checks
from xla_kernels.operator.checked import Checked, OperatorCall, Result
from xla_kernels.operator.tensor_checks import Tensors, Value
from xla_kernels.signature import untyped_payload
from xla_kernels.signature.schema import ArrayType

# Targets, platforms and APIs that were found. A registration is never undone.
_registered: set[tuple[str, str, str]] = set()


class KernelCall(OperatorCall):
    """An operator, and how its kernel is called."""

    @cached_property
    def _rule(self) -> sharding.Rule | None:
        return None if self.sharding_rule is None else rules.parse(self.sharding_rule)

    def check_declaration(self, where: str) -> None:
        try:
            if self._rule is not None:
                sharding_rule.check(self, self._rule)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where} {error}") from None

    def on_xla(self, *values: Value) -> Tensors:
        return self._returned(call_operator(**self._custom_call(values)))

    def prepared(self, *values: Value) -> object | None:
        """The part of on_xla that is done once for each set of shapes, dtypes and values."""
        return prepare(**self._custom_call(values))

    def _custom_call(self, values: Sequence[Value]) -> dict[str, object]:
        """The arguments of call_operator."""
        checked = self.checked(values, self._num_results)
        args, _, results = checked
        tensors = [args[name] for name in self.operands]
        aliases = {result: self.operands.index(arg) for result, arg in self.in_place.items()}
        parts = sharding.parts(
            self.name,
            self._rule,
            dict(zip(self.operands, tensors, strict=True)),
            [shape for shape, _ in results[: self._num_returned]],
            aliases,
        )
        if parts is not None:
            checked = self._checked_parts(args, results, parts)
        if self.payload is not None:
            parts = parts and parts._replace(operands=[p for p in parts.operands if p is not None])
            tensors = [tensor for tensor in tensors if tensor is not None]
        return self._arguments(checked, tensors, aliases, parts)

    def _arguments(
        self,
        checked: Checked,
        tensors: Sequence[torch.Tensor | None],
        aliases: Mapping[int, int],
        parts: sharding.Parts | None,
    ) -> dict[str, object]:
        """The arguments of call_operator for what each device has."""
        name, api = self.target, None
        if self.schema is not None:
            self._check_registered(registration.device_platform(), ("ffi", "untyped"))
            name, api = registration.call_with_schema(self.target, self.schema.text)
        return {
            "target": name,
            "inputs": tensors,
            "outputs": checked.results,
            "attributes": checked.parameters if self.schema else None,
            "payload": self.payload(**checked.args) if self.payload else None,
            "api": api,
            "aliases": aliases,
            "parts": parts,
            "traits": self.traits,
            "is_checked": self.schema is not None and not checked.has_symbols(self.operands),
        }

    def _checked_parts(
        self, args: Mapping[str, Value], whole: Sequence[Result], parts: sharding.Parts
    ) -> Checked:
        """The arguments of one device, and the whole results with the workspaces of that device."""
        own = {
            name: torch.empty(part.shape, dtype=args[name].dtype, device="meta")
            for name, part in zip(self.operands, parts.operands, strict=True)
            if part is not None
        }
        checked = self.checked(tuple((args | own).values()), self._num_results)
        given = [tuple(shape) for shape, _ in checked.results[: self._num_returned]]
        if given != [part.shape for part in parts.results]:
            raise ValueError(
                f"{self.name}: sharding_rule {self.sharding_rule!r} says that a device's "
                f"results are {[part.shape for part in parts.results]}, but the kernel's are "
                f"{given}"
            )
        results = [*whole[: self._num_returned], *checked.results[self._num_returned :]]
        return checked._replace(results=results)

    @property
    def cached_environment(self) -> Sequence[str] | None:
        """The environment variables that `prepared` depends on; None if they are not known."""
        functions = (self.check, self.attributes, self.sizes, self.results, self.payload)
        if self.environment is None and any(function is not None for function in functions):
            return None
        return [*(self.environment or ()), sharding.REFUSE_ENVIRONMENT]

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
        """The name with which calls for PyTorch's own tensors find the kernel."""
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
        """Replaces the arguments that the kernel writes to by copies."""
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
        operands = [_operand(tensor, written) for tensor in inputs]
        self._run_target(platform, checked, operands, results, stream)
        return results

    def _run_target(
        self,
        platform: str,
        checked: Checked,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        stream: int,
    ) -> None:
        """Calls the target's function with contiguous tensors."""
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


def _operand(tensor: torch.Tensor, written: Sequence[torch.Tensor]) -> torch.Tensor:
    """The operand for the kernel: a copy if it shares memory with a tensor that is written to."""
    if any(tensor is not other and tensor_checks.overlap(tensor, other) for other in written):
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()
