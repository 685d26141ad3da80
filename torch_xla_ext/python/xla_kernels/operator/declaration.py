"""Check an operator's schema, and its arguments and results against those of its kernel."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from xla_kernels import front_end, kernel_symbols
from xla_kernels.operator.checked import OperatorCall
from xla_kernels.signature.schema import Schema

if TYPE_CHECKING:
    from xla_kernels.cuda_source.kernel import CudaKernel

_TYPES = ("Tensor", "Optional[Tensor]")


def qualified_name(schema: str) -> str:
    """Return the qualified name, ``my_ns::op``, in an operator's schema.

    Raises:
        TypeError, ValueError: the schema is not a str, or has no namespace.
    """
    if not isinstance(schema, str):
        raise TypeError(f"define_operator: schema must be a str, but is a {type(schema).__name__}")
    match = re.match(r"\s*([A-Za-z_]\w*)::([A-Za-z_]\w*)\s*\(", schema)
    if match is None:
        raise ValueError(
            "define_operator: schema must begin with namespace, name and arguments, as in "
            f'"my_ns::op(Tensor x) -> Tensor", but is {schema!r}'
        )
    return f"{match[1]}::{match[2]}"


def functional_form(name: str, schema: str) -> tuple[str, str]:
    """Return the name and schema of the functional form, which returns the written values.

    Raises:
        ValueError: the schema's operator does not write to arguments, or returns something.
    """
    written = len(re.findall(r"\(\w!\)", schema))
    match = re.fullmatch(r"\s*[\w:]+\s*\((.*)\)\s*->\s*\(\s*\)\s*", re.sub(r"\(\w!\)", "", schema))
    if match is None or not written:
        raise ValueError(
            f"define_in_place_operator: {name}: the schema must mark the written arguments and "
            f'return nothing, as in "my_ns::op(Tensor x, Tensor(a!) out) -> ()", but is {schema!r}'
        )
    returns = ", ".join(["Tensor"] * written)
    return f"{name}_functional", f"{name}_functional({match[1]}) -> ({returns})"


def kernel_schema(
    name: str,
    target: str | CudaKernel,
    results: Callable[..., object] | None = None,
    payload: Callable[..., object] | None = None,
) -> Schema | None:
    """Return the schema of an operator's kernel; None if the kernel does not use kernel.h.

    Raises:
        ValueError: the kernel has no schema, and `results` or `payload` is missing.
        TypeError: the kernel has a schema, but `results` or `payload` is given; or the target has a
            wrong type.
    """
    if isinstance(target, str):
        schema = _registered_schema(name, target, results, payload)
        if schema is None:
            return None
    else:
        schema = _cuda_kernel_schema(name, target)
    if results is not None or payload is not None:
        raise TypeError(
            f"define_operator: {name}: results follow from the signature of {target}; only a "
            "kernel without a signature takes results"
        )
    return dataclasses.replace(schema, caller=name)


def _registered_schema(
    name: str,
    target: str,
    results: Callable[..., object] | None,
    payload: Callable[..., object] | None,
) -> Schema | None:
    if payload is not None:
        if results is None:
            raise TypeError(f"define_operator: {name}: payload requires results")
        return None
    front = front_end.current()
    schema = front.schema(target)
    if schema is not None:
        return schema
    names = front.kernel_names()
    what = f"no kernel {target!r} made with torch_xla_ext/kernel.h is registered"
    if target in names:
        what = f"the function registered as {target!r} was not made with torch_xla_ext/kernel.h"
    else:
        what += kernel_symbols.did_you_mean(target, names)
    raise ValueError(
        f"define_operator: {name}: {what}; register such a kernel first "
        f"({front.name}.register_kernel), or a TVM-FFI function with its signature; for a function "
        "without kernel.h, pass results and payload"
    )


def _cuda_kernel_schema(name: str, kernel: CudaKernel) -> Schema:
    from xla_kernels.cuda_source.kernel import CudaKernel  # seldom needed

    if not isinstance(kernel, CudaKernel):
        raise TypeError(
            f"define_operator: {name}: target must be a str or a cuda_kernel, but is of type "
            f"{type(kernel).__name__}"
        )
    if kernel.signature is None:
        raise TypeError(
            f"define_operator: {name}: cuda_kernel {kernel.name!r} has no signature; give it one, "
            'as in cuda_kernel(…, signature="(x: F32[n]) -> (out: F32[n])", grid=…, block=…)'
        )
    return kernel.signature.schema


def check(call: OperatorCall) -> None:
    """Check that the operator's arguments and results match those of its kernel.

    Raises:
        TypeError, ValueError: the arguments or results do not match.
    """
    where = f"define_operator: {call.name}:"
    declared = call.operator._schema
    for argument in declared.arguments:
        if argument.kwarg_only:
            raise ValueError(f"{where} argument {argument.name} must not be keyword-only")
        if "Tensor" in str(argument.type) and str(argument.type) not in _TYPES:
            raise ValueError(
                f"{where} argument {argument.name} must be a Tensor or Tensor?, but is of type "
                f"{argument.type}"
            )
    if not call.required:
        raise ValueError(f"{where} the schema must have an argument of type Tensor")
    if not declared.returns or any(str(each.type) != "Tensor" for each in declared.returns):
        raise ValueError(
            f"{where} it must return one or more Tensors, but its schema is {declared}"
        )
    if call.schema is not None:
        _check_operands(call, where)
        _check_parameters(call, where)
        _check_results(call, where)
    call.check_declaration(where)


def _check_operands(call: OperatorCall, where: str) -> None:
    signature = f"the signature is {call.schema.signature}"
    names = [operand.name for operand in call.schema.operands]
    if call.operands != names:
        raise ValueError(
            f"{where} the tensor arguments must be the operands of {call.target}, "
            f"{', '.join(names)}, by these names in this order, but are "
            f"{', '.join(call.operands)}; {signature}"
        )
    for operand in call.schema.operands:
        if not operand.optional and operand.name not in call.required:
            raise ValueError(f"{where} {operand.name} must not be optional; {signature}")
    for result, name in call.in_place.items():
        alias = call.schema.results[result].alias if result < len(call.schema.results) else None
        if alias is not None and names[alias] != name:
            raise ValueError(
                f"{where} result {result} of {call.target} is {names[alias]}, but the operator "
                f"writes {name} there; {signature}"
            )


def _check_parameters(call: OperatorCall, where: str) -> None:
    if call.attributes is not None:
        return
    given = {argument.name for argument in call.operator._schema.arguments}
    for parameter in call.schema.parameters:
        if parameter.name not in given:
            raise ValueError(
                f"{where} parameter {parameter.name} of {call.target}, a {parameter.type}, is "
                "not an argument of the operator; add it to the schema, or pass attributes, "
                "which returns it"
            )
    known = {*call.operands, *(parameter.name for parameter in call.schema.parameters)}
    if call.check is None and call.sizes is None and (unused := given - known):
        raise ValueError(
            f"{where} argument {min(unused)} is neither an operand nor a parameter of {call.target}"
        )


def _check_results(call: OperatorCall, where: str) -> None:
    count = len(call.schema.results)
    if len(call.operator._schema.returns) > count:
        raise ValueError(f"{where} it must return at most the {count} results of {call.target}")
    unknown = [name for name in call.schema.open_sizes() if name not in call.schema.size_functions]
    if unknown and call.sizes is None:
        raise ValueError(
            f"{where} {', '.join(unknown)} in the results of {call.target} does not follow from "
            "an operand or parameter; define it in the kernel (XLA_KERNEL_SIZE), or pass sizes, "
            "which returns it"
        )
