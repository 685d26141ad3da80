"""Make ``kernel[grid](...)`` and torch.library.triton_op accept the front end's tensors.

A launch writes to some of the tensors. PyTorch determines from the kernel's code which ones; the
launch becomes a `triton_call` with these tensors as aliases.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType

import torch

from xla_kernels import front_end
from xla_kernels.triton.descriptors import is_descriptor

# A kernel under Triton's decorators, whose types have no stubs.
Kernel = object
# The compute capability for which kernels are analyzed on machines without a GPU. The result is the
# same for all GPUs.
_ANY_CAPABILITY = 90
# Holds the functions, too, so that their ids, which are in the keys, are not reused.
_written: dict[str, tuple[Kernel, list[str]]] = {}


def getitem(original: Callable[..., object]) -> Callable[..., object]:
    """Replace KernelInterface.__getitem__: ``kernel[grid]``."""

    def getitem(kernel: Kernel, grid: object) -> Callable[..., object]:
        launch = original(kernel, grid)

        def launch_anywhere(*args: object, **kwargs: object) -> object:
            if _is_xla((*args, *kwargs.values())):
                return _launch(kernel, grid, args, kwargs)
            return launch(*args, **kwargs)

        return launch_anywhere

    return getitem


def run(original: Callable[..., object]) -> Callable[..., object]:
    """Replace JITFunction.run, which Helion's code calls directly."""

    def run(
        kernel: Kernel, *args: object, grid: object, warmup: bool, **kwargs: object
    ) -> object | None:
        if not warmup and _is_xla((*args, *kwargs.values())):
            return _launch(kernel, grid, args, kwargs)
        return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)

    return run


def custom_op(original: Callable[..., Kernel]) -> Callable[..., Kernel]:
    """Let operators of torch.library.triton_op write to XLA tensors.

    XLA tensors are functional tensors, and torch calls an operator that writes to such tensors only
    if the operator has a kernel for them. The operator's function is such a kernel, because its
    launches accept XLA tensors.
    """
    from torch._library import custom_ops
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    def add_kernel(operator: custom_ops.CustomOpDef) -> None:
        if operator._opoverload._schema.is_mutable:
            operator._lib.impl(operator._opoverload, operator._init_fn, "Functionalize")

    def custom_op(*args: object, **kwargs: object) -> custom_ops.CustomOpDef:
        operator = original(*args, **kwargs)
        add_kernel(operator)
        return operator

    for operator in list(custom_ops.OPDEFS.values()):
        if FunctionalTensorMode in operator._torch_dispatch_fns:  # triton_op's
            add_kernel(operator)
    return custom_op


def create_driver(original: Callable[[], object]) -> Callable[[], object]:
    """Give Triton a GPU to compile for if torch has no CUDA.

    Without a GPU, torch.compile assumes that a kernel writes to all its tensors, and warns.
    """

    def create() -> object:
        from xla_kernels.plugin.driver import compute_capability
        from xla_kernels.triton.kernel import Driver

        try:
            return original()
        except RuntimeError:  # no active drivers
            pass
        try:
            return Driver(compute_capability())
        except RuntimeError:
            return Driver(_ANY_CAPABILITY)

    return create


def initialize_driver(original: Callable[[Kernel], object]) -> Callable[[Kernel], object]:
    """Replace the initialization of Triton's driver proxy, in Triton before 3.5."""

    def initialize(proxy: Kernel) -> object:
        if proxy._obj is None:
            proxy._obj = create_driver(proxy._init_fn)()
        return original(proxy)

    return initialize


def _is_xla(value: object) -> bool:
    """Return whether a value is an XLA tensor, or a tuple or tensor descriptor with one."""
    if isinstance(value, tuple):
        return any(map(_is_xla, value))
    if is_descriptor(value):
        return _is_xla(value.base)
    return isinstance(value, torch.Tensor) and value.device.type == front_end.current().device_type


def _launch(
    kernel: Kernel, grid: Kernel, args: Sequence[object], keywords: Mapping[str, object]
) -> None:
    from xla_kernels.triton.kernel import tensors_in
    from xla_kernels.triton.triton_call import triton_call

    function = kernel
    while type(function).__name__ in ("Autotuner", "Heuristics"):
        function = function.fn
    names = list(inspect.signature(function.fn).parameters)
    tensors = tensors_in(dict(zip(names, args, strict=False)) | dict(keywords))
    for name, tensor in tensors.items():
        if not _is_xla(tensor):
            raise TypeError(
                f"{function.fn.__name__}: {name} is on {tensor.device}, but other tensors are "
                "XLA's: move it to the XLA device"
            )
    # torch cannot analyze kernels with tuples of tensors, or some uses of descriptors.
    written = list(tensors)
    descriptors = any(map(is_descriptor, (*args, *keywords.values())))
    if not descriptors and not any("." in name for name in tensors):
        written = _written_parameters(kernel, function, names, args, keywords)
    new_values = triton_call(kernel, *args, grid=grid, aliases=written, **keywords)
    with torch.no_grad():
        for name, new_value in zip(written, new_values, strict=True):
            front_end.current().assign(tensors[name], new_value)


def _written_parameters(
    kernel: Kernel,
    function: Kernel,
    names: Sequence[str],
    args: Sequence[object],
    keywords: Mapping[str, object],
) -> list[str]:
    """Return the tensors that a kernel writes to; all of them if its code cannot be analyzed."""
    from xla_kernels.triton.kernel import compiling_for

    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(function.fn).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    values = dict(zip(names, args, strict=False)) | dict(keywords)
    values |= {k: v(values) for k, v in values.items() if isinstance(v, FunctionType)}
    layer = kernel
    while layer is not function:
        if type(layer).__name__ == "Autotuner":
            values = layer.configs[0].kwargs | values
        else:
            values |= {key: value(values) for key, value in layer.values.items()}
        layer = layer.fn
    values = {name: (defaults | values)[name] for name in names if name in defaults | values}

    def like(value: object) -> object:
        return torch.empty(2, dtype=value.dtype) if isinstance(value, torch.Tensor) else value

    def shown(value: object) -> object:
        return value.dtype if isinstance(value, torch.Tensor) else value

    key = f"{id(function)} { {name: shown(value) for name, value in values.items()} }"
    if key not in _written:
        with compiling_for(_ANY_CAPABILITY):
            found = _found_by_torch(function, {name: like(value) for name, value in values.items()})
        tensors = [name for name in names if isinstance(values.get(name), torch.Tensor)]
        _written[key] = function, [name for name in tensors if name in found]
    return _written[key][1]


def _found_by_torch(function: Kernel, values: Mapping[str, object]) -> list[str]:
    from torch._higher_order_ops import triton_kernel_wrap

    if hasattr(triton_kernel_wrap, "identify_mutated_tensors"):  # before PyTorch 2.12
        return triton_kernel_wrap.identify_mutated_tensors(function, values, {})
    accesses = triton_kernel_wrap.identify_accessed_tensors(function, values, {})
    return [each.name for each in accesses.read_writes.writes]
