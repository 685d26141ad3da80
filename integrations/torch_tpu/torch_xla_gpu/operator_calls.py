"""Call operators' kernels with tensors of torch-tpu's device."""

from collections.abc import Sequence

import torch

from torch_xla_gpu import custom_call, device, kernels
from torch_xla_gpu.custom_call import compiled_kernel
from xla_kernels import ArrayType, Checked, OperatorCall, Tensors, Value, overlap
from xla_kernels.launch import TARGET
from xla_kernels.signature import ffi_attributes


class KernelCall(OperatorCall):
    """Calls an operator's kernel with tensors of the device."""

    def on_device(self, *values: Value) -> Tensors:
        """Return the results of a kernel, which may write only to copies of its operands."""
        checked = self.checked(values, self._num_results)
        copies = {name: custom_call.copy(checked.args[name]) for name in self.in_place.values()}
        return self._returned(self._call(checked._replace(args=checked.args | copies)))

    def in_place_on_device(self, *values: Value) -> None:
        """Assign the new values to the tensors that the kernel writes to."""
        checked = self.checked(values, self._num_results)
        written = [checked.args[name] for name in self.in_place.values()]
        # The kernel writes into a tensor's buffer. A part of another tensor has no buffer of its
        # own, and a tensor that another operand reads must keep its old value, so these are copied.
        operands = {
            name: _own_buffer(checked.args[name], name in self.in_place.values(), written)
            for name in self.operands
            if checked.args[name] is not None
        }
        results = self._call(checked._replace(args=checked.args | operands))
        for i, name in self.in_place.items():
            checked.args[name].copy_(results[i])

    def _call(self, checked: Checked) -> list[torch.Tensor]:
        tensors = [checked.args[name] for name in self.operands]
        present = [tensor for tensor in tensors if tensor is not None]
        results = [ArrayType(tuple(shape), dtype) for shape, dtype in checked.results]
        if self.payload is not None:
            payload = self.payload(**checked.args)
            return custom_call.call(
                self.target,
                present,
                results,
                payload=payload,
                layouts=self.traits.result_layouts,
                operand_layouts=self.traits.operand_layouts,
            )
        return custom_call.call(
            kernels.called_name(self.target, self.schema.text),
            present,
            results,
            attributes=ffi_attributes.of_kernel(self.schema, tensors, checked.parameters),
            aliases=self._aliases(checked),
            layouts={**self.traits.result_layouts, **self.schema.result_layouts},
            operand_layouts={**self.traits.operand_layouts, **self.schema.operand_layouts(tensors)},
        )

    def _aliases(self, checked: Checked) -> dict[int, int]:
        """Return the index of the present operand whose buffer each result has."""
        given = [name for name in self.operands if checked.args[name] is not None]
        return {result: given.index(name) for result, name in self.in_place.items()}


class CudaKernelCall(KernelCall):
    """A KernelCall that launches the kernel on a GPU and runs its reference on the CPU."""

    def _call(self, checked: Checked) -> list[torch.Tensor]:
        tensors = [checked.args[name] for name in self.operands]
        results = [ArrayType(tuple(shape), dtype) for shape, dtype in checked.results]
        if device.current().platform == "Host":
            # A reference does not have the kernel's workspaces.
            least = self._num_returned or len(self.in_place)
            return self.kernel.calls.operator_results(tensors, results, checked.parameters, least)
        types = [None if tensor is None else ArrayType.of(tensor) for tensor in tensors]
        launch, words = self.kernel.calls.prepared(types, results, checked.parameters)
        compiled_kernel.register()
        return custom_call.call(
            TARGET,
            [tensor for tensor in tensors if tensor is not None],
            results,
            attributes=launch.attributes(words),
            aliases=self._aliases(checked),
            layouts=self.schema.result_layouts,
            operand_layouts=self.schema.operand_layouts(tensors),
        )


def _own_buffer(
    tensor: torch.Tensor, is_written: bool, written: Sequence[torch.Tensor]
) -> torch.Tensor:
    if is_written:
        whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.itemsize
        return tensor if whole and tensor.is_contiguous() else custom_call.copy(tensor)
    if any(overlap(tensor, other) for other in written):
        return custom_call.copy(tensor)
    return tensor
