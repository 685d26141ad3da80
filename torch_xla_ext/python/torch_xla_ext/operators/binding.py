"""Checks, when an operator is defined, that it matches its kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torch_xla_ext.kernel_schema.schema import Argument, Schema
from torch_xla_ext.operators.call import KernelCall
from torch_xla_ext.sharding import rule as rules
from torch_xla_ext.targets import registration

if TYPE_CHECKING:
    from torch_xla_ext.cuda_kernels.kernel import CudaKernel

_TYPES = ("Tensor", "Optional[Tensor]")


def qualified_name(schema: str) -> str:
    """``my_ns::op`` of an operator's schema.

    Raises:
        TypeError, ValueError: it is no text, or names no namespace.
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
    """The name and schema of the operator that returns what this one writes.

    Raises:
        ValueError: the schema is not that of an operator that writes and returns nothing.
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
    target: str,
    results: Callable[..., object] | None = None,
    payload: Callable[..., object] | None = None,
) -> Schema | None:
    """The schema of an operator's kernel, None if it is not made with torch_xla_ext/kernel.h.

    Raises:
        ValueError: there is none, and what takes its place is missing.
        TypeError: there is one, and something takes its place.
    """
    if payload is not None:
        if results is None:
            raise TypeError(f"define_operator: {name}: payload requires results")
        return None
    schema = registration.schema_of_any_platform(target)
    if schema is None:
        names = {each.name for each in registration.registered_targets()}
        what = f"no kernel {target!r} made with torch_xla_ext/kernel.h is registered"
        if target in names:
            what = f"the function registered as {target!r} was not made with torch_xla_ext/kernel.h"
        else:
            what += registration.did_you_mean(target, names)
        raise ValueError(
            f"define_operator: {name}: {what}; register one before (torch_xla_ext.register_kernel; "
            "a TVM-FFI function with its signature), or pass results and payload for one without "
            "kernel.h"
        )
    if results is not None:
        raise _results_follow(name, target)
    return replace(schema, caller=name)


def cuda_kernel_schema(
    name: str,
    kernel: CudaKernel,
    results: Callable[..., object] | None = None,
    payload: Callable[..., object] | None = None,
) -> Schema:
    """The schema of an operator whose target is a `cuda_kernel`.

    Raises:
        TypeError: it has none, or something takes its place.
    """
    if kernel.signature is None:
        raise TypeError(
            f"define_operator: {name}: cuda_kernel {kernel.name!r} has no signature; give it one, "
            'as in cuda_kernel(…, signature="(x: F32[n]) -> (out: F32[n])", grid=…, block=…)'
        )
    if results is not None or payload is not None:
        raise _results_follow(name, kernel.name)
    return replace(kernel.signature.schema, caller=name)


def _results_follow(name: str, target: str) -> TypeError:
    return TypeError(
        f"define_operator: {name}: results follow from the signature of {target}; only a "
        "kernel with its own payload takes results"
    )


def check(call: KernelCall) -> None:
    """Checks that the operator's arguments and results are those of its kernel.

    Raises:
        TypeError, ValueError: they are not.
    """
    declared, where = call.operator._schema, f"define_operator: {call.name}:"
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
    if call.sharding_rule is not None:
        try:
            _check_sharding_rule(call, call.sharding_rule)
        except ValueError as error:
            raise ValueError(f"{where} {error}") from None


def _check_operands(call: KernelCall, where: str) -> None:
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


def _check_parameters(call: KernelCall, where: str) -> None:
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


def _check_results(call: KernelCall, where: str) -> None:
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


def _check_sharding_rule(call: KernelCall, rule: rules.Rule) -> None:
    count = len(call.operator._schema.returns)
    operands: list[tuple[str, Argument | None]] = [(name, None) for name in call.operands]
    results: list[tuple[str, Argument | None]] = [(str(i), None) for i in range(count)]
    if call.schema is not None:
        operands = [(operand.name, operand) for operand in call.schema.operands]
        results = [(result.name, result) for result in call.schema.results[:count]]
    rules.check_ranks(
        rule,
        [(name, _rank(argument)) for name, argument in operands],
        [(name, _rank(argument)) for name, argument in results],
    )
    rules.check_aliases(rule, {r: call.operands.index(name) for r, name in call.in_place.items()})
    sizes: dict[str | int, str] = {}
    # Those that `sizes` or the kernel computes, of a part's operands for a part.
    computed = call.schema.open_sizes() if call.schema is not None else ()
    tensors = zip((*operands, *results), (*rule.operands, *rule.results), strict=True)
    for (name, argument), dims in tensors:
        if _rank(argument) is None or rules.ELLIPSIS in dims:
            continue
        for size, dim in zip(argument.dims, dims, strict=True):
            if size.name in computed:
                continue
            if len(dim) == 1 and sizes.setdefault(dim[0], size.text) != size.text:
                raise ValueError(
                    f"sharding_rule {rule.text!r}: {dim[0]} is {sizes[dim[0]]} of the signature, "
                    f"and {size.text} of {name}"
                )


def _rank(argument: Argument | None) -> int | None:
    """The rank of an operand or result, None if it may have several."""
    if argument is None or any(dim.star for dim in argument.dims):
        return None
    return len(argument.dims)
