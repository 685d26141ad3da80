"""Decide whether a PyTorch operator can be part of an XLA program, with the reason if not."""

import re

import torch

from torch_xla_ext.registry.platforms import PLATFORMS

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
_COMPOSITE_KEYS = (
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
)
_ARGUMENT_TYPES = {
    *("Tensor", "int", "SymInt", "float", "SymFloat", "bool", "SymBool", "str", "number"),
    *("Scalar", "ScalarType", "Layout", "MemoryFormat", "Device", "Generator"),
}
_RETURN_TYPES = {"Tensor", "int", "SymInt", "float", "bool"}


def kernel_keys(platform: str) -> tuple[str, ...]:
    """Return the dispatch keys under which an operator may have a kernel for `platform`."""
    return (PLATFORMS[platform].device_type, *_COMPOSITE_KEYS)


def is_python(operator: torch._ops.OpOverload, platform: str) -> bool:
    """Return whether the operator's kernel is a Python function."""
    namespace, _, name = operator.name().partition("::")
    return any(f"{namespace}/{name}/{key}" in torch.library._impls for key in kernel_keys(platform))


def element_type(type_: object) -> str:
    """Return the innermost type: ``Tensor`` for ``Optional[List[Tensor]]``."""
    return re.sub(r"Optional\[|List\[|\]", "", str(type_))


def is_written(argument: torch._C.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def is_out_variant(operator: torch._ops.OpOverload) -> bool:
    """Return whether an overload writes its results to out= arguments."""
    return any(a.kwarg_only and is_written(a) for a in operator._schema.arguments)


def why_not(operator: torch._ops.OpOverload, platform: str) -> str | None:
    """Return why `operator` cannot be a custom call; None if it can."""
    if {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(operator.tags):
        return "what it returns has a shape or a value that depends on its arguments' data"
    return _why_not_by_schema(operator._schema) or _why_not_by_kernels(operator, platform)


def _why_not_by_schema(schema: torch._C.FunctionSchema) -> str | None:
    for argument in schema.arguments:
        if element_type(argument.type) not in _ARGUMENT_TYPES:
            return f"its argument {argument.name} is of type {argument.type}"
    if not any(element_type(argument.type) == "Tensor" for argument in schema.arguments):
        return "it has no argument that is a tensor"
    for result in schema.returns:
        if element_type(result.type) not in _RETURN_TYPES:
            return f"it returns a {result.type}"
        if result.alias_info is not None and not result.alias_info.is_write:
            return (
                "its result is a view of an argument, and XLA's arrays have no views; call torch's "
                "own function"
            )
    tensors = [r for r in schema.returns if element_type(r.type) == "Tensor"]
    if not tensors and not any(map(is_written, schema.arguments)):
        return "it neither returns a tensor nor writes to one"
    return None


def _why_not_by_kernels(operator: torch._ops.OpOverload, platform: str) -> str | None:
    name = operator.name()
    # An operator without results needs no fake function for their shapes.
    trivial = torch._library.utils.can_generate_trivial_fake_impl(operator)
    if not (has_fake_function(operator) or trivial):
        return (
            "it has no fake function, which gives the shapes of its results; give it one with "
            f"torch.library.register_fake({name!r})"
        )
    if platform == "CUDA" and not torch.cuda.is_available():
        return (
            "it runs on the GPU only with a torch that can use CUDA, but this process's torch, "
            f"{torch.__version__}, cannot; install torch 2.8.0 from the package index"
        )
    if not any(_has_kernel(name, key) for key in kernel_keys(platform)):
        return f"torch has no kernel of it for {PLATFORMS[platform].device_type}"
    return None


def has_fake_function(operator: torch._ops.OpOverload) -> bool:
    name = operator.name()
    custom = torch._library.custom_ops.OPDEFS.get(name)
    if custom is not None:  # always registered; it raises without a fake function
        trivial = torch._library.utils.can_generate_trivial_fake_impl(operator)
        return custom._abstract_fn is not None or trivial
    if torch._library.simple_registry.singleton.find(name).fake_impl.kernel is not None:
        return True
    return any(_has_kernel(name, key) for key in ("Meta", *_COMPOSITE_KEYS))
