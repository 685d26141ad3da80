"""Sharding rules: which dimensions of a call's tensors may be sharded.

A rule is one line, in a notation similar to einsum, JAX's ``sharding_rule`` and Shardy's
``sdy.sharding_rule``::

    s (k g) _, _ _ k _, _ _ k _, s _, s -> s (k g) _

Operands and results are separated by commas. A dimension is

- a name, called a factor: the kernel computes each of its indices independently. Devices may share
  the factor; each then has its shard of every tensor with that name, and all of every other tensor;
- ``(k g)``, a product of factors, of which the first varies slowest, as in reshape. A number is a
  factor that is never sharded: ``(k 2)``;
- ``_``, a dimension that each device needs whole;
- ``...``, any number of dimensions, each a factor of its own.

If an operand has a factor that a result lacks, the kernel sums over this factor. Declare it after a
semicolon::

    n t, t -> n; sum t

Devices may share it, too: each computes its part of the sum, and XLA adds the parts (an
all-reduce). A dimension over which anything else is computed, such as a softmax, is ``_``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

_TOKEN = re.compile(r"\s*(\.\.\.|->|[(),]|[A-Za-z]\w*|_(?!\w)|\d+)")

_SUMS = re.compile(r"\s*sum((?:\s+[A-Za-z]\w*)+)\s*")

# The factors of a dimension, in their order: names, and numbers that are never divided. The empty
# tuple means that each device needs the whole dimension.
Dim = tuple[str | int, ...]
ELLIPSIS: Dim = ("...",)
Sizes = dict[str, int]


@dataclass(frozen=True)
class Rule:
    """A parsed rule: the dimensions of each operand and of each result.

    Attributes:
        text: the rule as it was written.
        sums: the factors that the kernel sums over.
    """

    text: str
    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    sums: tuple[str, ...] = ()

    def dims(self, rank: int, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return the dimensions of a tensor with this rank, with names in place of `...`."""
        if ELLIPSIS not in dims:
            return dims
        begin, count = dims.index(ELLIPSIS), rank - (len(dims) - 1)
        return (*dims[:begin], *((f"...{i}",) for i in range(count)), *dims[begin + 1 :])

    def sizes(self, shapes: Sequence[Sequence[int] | None]) -> Sizes:
        """Return the factors' sizes, from the operands' shapes (None for an absent operand).

        Raises:
            ValueError: a factor has two sizes, or a dimension is no multiple of its factors.
        """
        known: Sizes = {}
        pairs = [
            (index, dim, size)
            for index, (shape, dims) in enumerate(zip(shapes, self.operands, strict=True))
            if shape is not None
            for dim, size in zip(self.dims(len(shape), dims), shape, strict=True)
            if dim
        ]
        while True:
            found = len(known)
            for index, dim, size in pairs:
                sizes = [_size(factor, known) for factor in dim]
                unknown = [f for f, each in zip(dim, sizes, strict=True) if each is None]
                product = prod(each for each in sizes if each is not None)
                if not unknown and product != size:
                    raise ValueError(
                        f"operand {index} has {size} for {_text(dim)}, but other operands imply "
                        f"{product}; the rule is {self.text!r}"
                    )
                if len(unknown) == 1:
                    if product == 0 or size % product:
                        raise ValueError(
                            f"operand {index} has {size} for {_text(dim)}, which is not a "
                            f"multiple of {product}; the rule is {self.text!r}"
                        )
                    known[unknown[0]] = size // product
            if len(known) == found:
                return known


def _size(factor: str | int, known: Sizes) -> int | None:
    return factor if isinstance(factor, int) else known.get(factor)


def _text(dim: Dim) -> str:
    if len(dim) == 1:
        return str(dim[0])
    return "(" + " ".join(map(str, dim)) + ")" if dim else "_"


def names(dims: Sequence[Dim]) -> list[str]:
    """Return a tensor's factors, which can be divided."""
    return [factor for dim in dims for factor in dim if isinstance(factor, str)]


@lru_cache(maxsize=256)
def parse(text: str) -> Rule:
    """Parse a rule.

    Raises:
        TypeError: `text` is not a str.
        ValueError: `text` is not a rule; or a factor is in an operand but not in every result, or
            in a result but in no operand, or no operand determines its size.
    """
    if not isinstance(text, str):
        raise TypeError(f"sharding_rule must be a str, but is of type {type(text).__name__}")
    operands, arrow, results = text.partition("->")
    if not arrow or "->" in results:
        raise ValueError(f"sharding_rule must have one ->, as in 'n _, n -> n', but is {text!r}")
    results, semicolon, sums = results.partition(";")
    summed = _SUMS.fullmatch(sums)
    if semicolon and summed is None:
        raise ValueError(
            f"sharding_rule: {sums.strip()!r} must be 'sum' and the names of factors, as in "
            f"'n t, t -> n; sum t', in {text!r}"
        )
    names_of_sums = tuple(summed[1].split()) if summed else ()
    rule = Rule(text, _tensors(operands, text), _tensors(results, text), names_of_sums)
    _check_factors(rule)
    return rule


def _tensors(part: str, text: str) -> tuple[tuple[Dim, ...], ...]:
    tensors, dims, product = [], [], None
    position = 0
    part = part.rstrip()
    while position < len(part):
        match = _TOKEN.match(part, position)
        if match is None:
            raise ValueError(f"sharding_rule: {part[position:]!r} cannot be parsed in {text!r}")
        token, position = match[1], match.end()
        if token == "," and product is None:
            tensors.append(tuple(dims))
            dims = []
        elif token == "(" and product is None:
            product = []
        elif token == ")" and product:
            dims.append(tuple(product))
            product = None
        elif token in (",", "(", ")", "->") or (token in ("...", "_") and product is not None):
            raise ValueError(f"sharding_rule: {token!r} is misplaced in {text!r}")
        elif product is not None:
            product.append(int(token) if token.isdigit() else token)
        elif token.isdigit():
            raise ValueError(
                f"sharding_rule: the number {token} stands alone in {text!r}; write _ for a "
                "dimension that is not sharded"
            )
        else:
            dims.append(() if token == "_" else (token,))
    if product is not None:
        raise ValueError(f"sharding_rule: a ) is missing in {text!r}")
    tensors.append(tuple(dims))
    return tuple(tensors)


def _check_factors(rule: Rule) -> None:
    for kind, tensors in (("operand", rule.operands), ("result", rule.results)):
        for index, dims in enumerate(tensors):
            found = names(dims)
            for name in found:
                if found.count(name) > 1:
                    raise ValueError(
                        f"sharding_rule: {kind} {index} has the factor {name} twice, in "
                        f"{rule.text!r}"
                    )
    known = {name for dims in rule.operands for name in names(dims)}
    for index, dims in enumerate(rule.results):
        for name in names(dims):
            if name not in known:
                raise ValueError(
                    f"sharding_rule: {name} of result {index} is in no operand, in {rule.text!r}"
                )
        for name in sorted(known - set(names(dims)) - set(rule.sums)):
            raise ValueError(
                f"sharding_rule: {name} is in an operand, but not in result {index}, in "
                f"{rule.text!r}: if it were sharded, each device would compute only a partial "
                "result; write _ for a dimension that each device needs whole, or '; sum "
                f"{name}' if the results of all devices are to be added"
            )
    for name in rule.sums:
        if name not in known or all(name in names(dims) for dims in rule.results):
            raise ValueError(
                f"sharding_rule: there is no sum over {name} in {rule.text!r}: the factor must be "
                "in an operand, and missing in a result"
            )
    _check_sizes_follow(rule)


def _check_sizes_follow(rule: Rule) -> None:
    known: set[str | int] = set()
    dims = [dim for operand in rule.operands for dim in operand]
    while True:
        unknown = [[f for f in dim if isinstance(f, str) and f not in known] for dim in dims]
        found = {factors[0] for factors in unknown if len(factors) == 1}
        if not found:
            break
        known |= found
    for dim, factors in zip(dims, unknown, strict=True):
        if factors:
            raise ValueError(
                f"sharding_rule: the sizes of {' and '.join(map(str, factors))} in {_text(dim)} "
                f"follow from no operand, in {rule.text!r}"
            )


def check_ranks(
    rule: Rule,
    operands: Sequence[tuple[str, int | None]],
    results: Sequence[tuple[str, int | None]],
) -> None:
    """Check a rule against the tensors of a call.

    Args:
        operands, results: the name and the rank of each; None for an unknown rank.

    Raises:
        ValueError: the call has a different number of tensors, or one has a different rank.
    """
    for kind, tensors, declared in (
        ("operand", operands, rule.operands),
        ("result", results, rule.results),
    ):
        if len(tensors) != len(declared):
            raise ValueError(
                f"sharding_rule {rule.text!r} has {len(declared)} {kind}s, but there are "
                f"{len(tensors)}: {', '.join(name for name, _ in tensors)}"
            )
        for (name, rank), dims in zip(tensors, declared, strict=True):
            lowest = len(dims) - (ELLIPSIS in dims)
            fits = rank is None or (rank >= lowest if ELLIPSIS in dims else rank == lowest)
            if not fits:
                raise ValueError(
                    f"sharding_rule {rule.text!r} has {lowest} dimensions for {kind} {name}, whose "
                    f"rank is {rank}"
                )


def check_aliases(rule: Rule, aliases: dict[int, int]) -> None:
    """Check that a result in an operand's buffer is divided as the operand is.

    Raises:
        ValueError: it is divided differently.
    """
    for result, operand in aliases.items():
        if rule.results[result] != rule.operands[operand]:
            raise ValueError(
                f"sharding_rule {rule.text!r}: result {result} shares the buffer of operand "
                f"{operand}, so it must be sharded in the same way"
            )
        for name in rule.sums:
            if name not in names(rule.results[result]):
                raise ValueError(
                    f"sharding_rule {rule.text!r}: result {result} shares the buffer of operand "
                    f"{operand}, whose values each device has, so it cannot be a sum over {name} "
                    "of the devices' results"
                )
