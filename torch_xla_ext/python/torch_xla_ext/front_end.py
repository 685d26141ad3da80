"""Make the operators and kernels of xla_kernels run with torch_xla."""

from collections.abc import Callable, Collection, Sequence

import torch
import torch_xla

from torch_xla_ext.custom_call import compiled_kernel, parts
from torch_xla_ext.operator import functionalization
from torch_xla_ext.operator.cuda_kernel_call import CudaKernelCall
from torch_xla_ext.operator.kernel_call import KernelCall
from torch_xla_ext.registry import registration
from torch_xla_ext.registry.registration import Target
from xla_kernels.front_end import FrontEnd
from xla_kernels.operator import torch_library
from xla_kernels.operator.tensor_checks import Value
from xla_kernels.signature.schema import Schema

_XLAC = torch_xla._XLAC


class TorchXla(FrontEnd):
    """xla_kernels' FrontEnd for XLA tensors, and for PyTorch's own CPU and CUDA tensors."""

    name = "torch_xla_ext"
    device_type = "xla"
    autocast_keys = ("AutocastCPU", "AutocastCUDA", "AutocastXLA")
    operator_call = KernelCall
    cuda_kernel_operator_call = CudaKernelCall

    schema = staticmethod(registration.schema_of_any_platform)
    call_key = staticmethod(_XLAC._xla_call_key)
    launch_is_cacheable = staticmethod(compiled_kernel.launch_is_cacheable)
    launch = staticmethod(compiled_kernel.launch)
    prepare_launch = staticmethod(compiled_kernel.prepare_launch)
    launch_prepared = staticmethod(_XLAC._xla_call_prepared)
    launch_now = staticmethod(compiled_kernel.launch_now)
    parts = staticmethod(parts)
    load_tvm_ffi = staticmethod(_XLAC._xla_load_tvm_ffi)
    tvm_ffi_function = staticmethod(_XLAC._xla_tvm_ffi_function)

    def agreed(self, key: str, choose: Callable[[], str]) -> str:
        from torch_xla_ext.plugin import rendezvous  # which few programs need

        return rendezvous.agreed(key, choose)

    def run_operator(
        self, operator: torch._ops.OpOverload, *args: object, **options: object
    ) -> list[torch.Tensor]:
        from torch_xla_ext.launchers.torch_operator.register import run_operator

        return run_operator(operator, *args, **options)

    def assign(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        if torch._is_functional_tensor(tensor):
            functionalization.replace(tensor, value)
        else:
            tensor.copy_(value)

    def register_tvm_ffi(
        self,
        name: str,
        platform: str,
        function: int,
        words: Sequence[str],
        cuda_graph: bool,
        library: object,
        schema: Schema | None,
    ) -> list[Target]:
        target = Target(name, platform, "ffi")

        def register() -> None:
            text = schema.text if schema is not None else ""
            _XLAC._xla_register_tvm_ffi_kernel(name, platform, function, words, cuda_graph, text)

        registration.add(target, register, library, schema)
        return [target]

    def platform(self) -> str:
        return registration.device_platform()

    def kernel_names(self) -> Collection[str]:
        return {target.name for target in registration.registered_targets()}

    def implement(self, library: torch.library.Library, call: KernelCall) -> object:
        library.impl(call.operator, call.on_cpu, "CPU")
        library.impl(call.operator, call.on_cuda, "CUDA")
        return _register(
            call.operator,
            _XLAC._xla_register_operator,
            prepare=call.prepared,
            run=call.on_xla,
            environment=call.cached_environment,
        )

    def implement_in_place(
        self,
        library: torch.library.Library,
        call: KernelCall,
        functional: object,
        new_values: Callable[[tuple[Value, ...]], list[tuple[torch.Tensor, torch.Tensor]]],
    ) -> None:
        def run_functionalized(*args: Value) -> None:
            for tensor, result in new_values(functionalization.unsharded(args)):
                functionalization.replace(tensor, result)

        def run_xla(*args: Value) -> None:
            """Run the operator if functionalization is off (XLA_DISABLE_FUNCTIONALIZATION=1)."""
            for tensor, result in new_values(args):
                tensor.copy_(result)

        library.impl(call.operator, call.in_place_on_cpu, "CPU")
        library.impl(call.operator, call.in_place_on_cuda, "CUDA")
        library.impl(call.operator, run_xla, "XLA")
        arguments = call.operator._schema.arguments
        _register(
            call.operator,
            _XLAC._xla_register_operator_in_place,
            functional=functional,
            run=run_functionalized,
            written=[i for i, argument in enumerate(arguments) if argument.is_write],
        )

    def differentiate(
        self,
        library: torch.library.Library,
        operator: torch._ops.OpOverload,
        kernel: Callable[..., object],
        written: Sequence[int] = (),
    ) -> None:
        register = _XLAC._xla_register_operator_autograd
        _register(operator, register, differentiate=kernel, written=written)


def _register(
    operator: torch._ops.OpOverload, register: Callable[..., object], **how: object
) -> object:
    """Register a kernel of csrc/custom_call/dispatcher_kernels.h for the operator's lifetime."""
    schema = operator._schema
    kernel = register(name=schema.name, overload=schema.overload_name, **how)
    torch_library.keep(schema.name, kernel)
    return kernel
