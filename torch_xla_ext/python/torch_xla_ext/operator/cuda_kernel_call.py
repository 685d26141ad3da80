"""Call operators whose kernel was made with `cuda_kernel`."""

from collections.abc import Sequence

import torch

from torch_xla_ext.custom_call import Request, compiled_kernel, tensors_of
from torch_xla_ext.operator.kernel_call import Checked, KernelCall
from torch_xla_ext.registry import registration
from xla_kernels.launch import TARGET
from xla_kernels.operator.tensor_checks import Tensors, Value
from xla_kernels.signature.schema import ArrayType
from xla_kernels.traits import Traits


class CudaKernelCall(KernelCall):
    """A KernelCall that launches the kernel on a GPU and runs its reference on the CPU."""

    def prepared(self, *values: Value) -> object | None:
        if registration.device_platform() == "Host":
            return None  # the reference is PyTorch's operations, which on_xla traces
        return super().prepared(*values)

    def on_xla(self, *values: Value) -> Tensors:
        if registration.device_platform() == "Host":
            return self.on_cpu(*values)
        return super().on_xla(*values)

    def on_cpu(self, *values: Value) -> Tensors:
        return self._returned(self._reference(self._checked(values), self._num_returned))

    def in_place_on_cpu(self, *values: Value) -> None:
        checked = self._checked(values)
        results = self._reference(checked, len(self.in_place))
        for result, name in self.in_place.items():
            checked.args[name].copy_(results[result])

    def _reference(self, checked: Checked, least: int) -> list[torch.Tensor]:
        """Return the reference's results, without the kernel's workspaces."""
        tensors = [checked.args[name] for name in self.operands]
        types = [ArrayType(tuple(shape), dtype) for shape, dtype in checked.results]
        return self.kernel.calls.operator_results(tensors, types, checked.parameters, least)

    def _request(self, checked: Checked) -> Request:
        tensors = [checked.args[name] for name in self.operands]
        types = [ArrayType.of(result) for result in checked.results]
        launch, words = self.kernel.calls.prepared(
            self._operand_types(checked), types, checked.parameters
        )
        present = [tensor for tensor in tensors if tensor is not None]
        counted = {
            result: sum(tensor is not None for tensor in tensors[:index])
            for result, index in self._aliases.items()
        }
        return Request(
            TARGET,
            tensors_of(TARGET, present),
            checked.results,
            attributes=launch.attributes(words),
            api="ffi",
            aliases=counted,
            traits=Traits(
                operand_layouts=self.schema.operand_layouts(tensors),
                result_layouts=self.schema.result_layouts,
            ),
        )

    def _operand_types(self, checked: Checked) -> list[ArrayType | None]:
        tensors = [checked.args[name] for name in self.operands]
        return [None if t is None else ArrayType(tuple(t.shape), t.dtype) for t in tensors]

    def _run_target(
        self,
        platform: str,
        checked: Checked,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        stream: int,
    ) -> None:
        shapes = [ArrayType.of(result) for result in checked.results]
        launch, words = self.kernel.calls.prepared(
            self._operand_types(checked), shapes, checked.parameters
        )
        compiled_kernel.run(launch, operands, results, words, stream)
