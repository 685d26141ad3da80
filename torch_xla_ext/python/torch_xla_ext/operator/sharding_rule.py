"""Checks that an operator's sharding rule fits its declaration and its kernel's signature."""

from torch_xla_ext.sharding import rule as rules
from xla_kernels.operator.checked import OperatorCall
from xla_kernels.signature.schema import Argument


def check(call: OperatorCall, rule: rules.Rule) -> None:
    """Raise ValueError if the rule does not fit."""
    count = len(call.operator._schema.returns)
    if hidden := [name for result, name in call.in_place.items() if result >= count]:
        raise ValueError(
            f"sharding_rule: {hidden[0]} is written in place, so its new value must be returned"
        )
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
    # `sizes` or the kernel computes these sizes from the operands of each part.
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
                    f"sharding_rule {rule.text!r}: {dim[0]} stands for the signature's "
                    f"{sizes[dim[0]]}, and also for {size.text} in {name}"
                )


def _rank(argument: Argument | None) -> int | None:
    """Return the rank that the signature fixes for an operand or result, or None."""
    if argument is None or any(dim.star for dim in argument.dims):
        return None
    return len(argument.dims)
