"""Checks, when an operator is defined, that it matches its kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch_xla_ext.operator import declaration
from torch_xla_ext.operator.kernel_call import KernelCall
from torch_xla_ext.registry import kernel_symbols, registration
from torch_xla_ext.sharding import rule as rules
from torch_xla_ext.signature.schema import Argument, Schema


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
            what += kernel_symbols.did_you_mean(target, names)
        raise ValueError(
            f"define_operator: {name}: {what}; register one before (torch_xla_ext.register_kernel; "
            "a TVM-FFI function with its signature), or pass results and payload for one without "
            "kernel.h"
        )
    if results is not None:
        raise declaration.results_follow(name, target)
    return replace(schema, caller=name)


def check(call: KernelCall) -> None:
    """Checks that the operator's arguments and results are those of its kernel.

    Raises:
        TypeError, ValueError: they are not.
    """
    where = f"define_operator: {call.name}:"
    declaration.check(call, where)
    if call.sharding_rule is not None:
        try:
            _check_sharding_rule(call, call.sharding_rule)
        except ValueError as error:
            raise ValueError(f"{where} {error}") from None


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
