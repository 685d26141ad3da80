"""Make the operators and kernels of xla_kernels run with torch-tpu."""

from collections.abc import Callable, Collection, Sequence

import torch

from torch_xla_gpu import device, front, kernels
from torch_xla_gpu.custom_call import compiled_kernel
from torch_xla_gpu.operator_calls import CudaKernelCall, KernelCall
from torch_xla_gpu.upstream_fixes import on_cpu
from xla_kernels import Value, transforms
from xla_kernels.front_end import FrontEnd


class TorchTpu(FrontEnd):
    """xla_kernels' FrontEnd for tensors of torch-tpu's device, eager and under torch.compile.

    `environment` and `sharding_rule` of define_operator have no effect: a call of an operator is
    not cached, and there is one device in a process.
    """

    name = "torch_xla_gpu"
    device_type = device.TYPE
    autocast_keys = ("AutocastPrivateUse1",)
    operator_call = KernelCall
    cuda_kernel_operator_call = CudaKernelCall

    schema = staticmethod(kernels.schema)
    call_key = staticmethod(compiled_kernel.key_of)
    launch = staticmethod(compiled_kernel.launch)
    prepare_launch = staticmethod(compiled_kernel.prepare_launch)
    launch_now = staticmethod(front.launch_now)
    load_tvm_ffi = staticmethod(front.load_tvm_ffi)
    tvm_ffi_function = staticmethod(front.tvm_ffi_function)
    register_tvm_ffi = staticmethod(kernels.register_tvm_ffi)

    def platform(self) -> str:
        return device.current().platform

    def kernel_names(self) -> Collection[str]:
        return {target.name for target in kernels.registered_targets()}

    def implement(self, library: torch.library.Library, call: KernelCall) -> None:
        library.impl(call.operator, call.on_device, "PrivateUse1")

    def implement_in_place(
        self,
        library: torch.library.Library,
        call: KernelCall,
        functional: object,
        new_values: Callable[[tuple[Value, ...]], list[tuple[torch.Tensor, torch.Tensor]]],
    ) -> None:
        library.impl(call.operator, call.in_place_on_device, "PrivateUse1")

    def differentiate(
        self,
        library: torch.library.Library,
        operator: torch._ops.OpOverload,
        kernel: Callable[..., object],
        written: Sequence[int] = (),
    ) -> None:
        library.impl(operator, kernel, "AutogradPrivateUse1")

    def run_operator(
        self,
        operator: torch._ops.OpOverload,
        operands: list[torch.Tensor],
        *args: object,
        sharding_rule: str | None = None,
        of_part: object = None,
    ) -> list[torch.Tensor]:
        """Implement FrontEnd.run_operator eagerly, on the CPU."""

        def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return on_cpu.Fallback(operator)(list(tensors), *args)

        return compiled_kernel.without_derivative(operator.name(), operands, lambda: run)

    def assign(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        tensor.copy_(value)

    def launch_is_cacheable(self) -> bool:
        return not transforms.may_apply()

    def launch_prepared(
        self, prepared: Callable[..., list[torch.Tensor]], operands: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        return prepared(operands)
