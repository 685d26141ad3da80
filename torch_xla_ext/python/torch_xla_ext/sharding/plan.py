"""Plans a sharded call from its rule and its operands' shardings: the shard of each tensor."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from torch_xla_ext.sharding import tiling
from torch_xla_ext.sharding.rule import Dim, Rule, Sizes
from torch_xla_ext.sharding.tiling import Index, Tiling

# Makes a call that gathers an operand an error instead of a warning.
REFUSE_ENVIRONMENT = "TORCH_XLA_EXT_REFUSE_GATHERS"

Shape = tuple[int, ...]


class Operand(NamedTuple):
    """What a plan depends on.

    Attributes:
        num_bytes: of the whole tensor.
        sharding: as of _xla_sharding; None if it has none.
    """

    shape: Shape
    num_bytes: int
    sharding: bytes | None


class Shard(NamedTuple):
    """What a device has of an operand or result.

    Attributes:
        sharding: an OpSharding's bytes.
        marked: of a result, whether its tensor is marked with this sharding.
    """

    sharding: bytes
    shape: Shape
    marked: bool = True


@dataclass(frozen=True)
class Gather:
    """An operand that is not used as it is divided.

    Attributes:
        operand: its number.
        sharding: what it has, in words.
        num_bytes: what each device receives of it.
        reason: why.
    """

    operand: int
    sharding: str
    num_bytes: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """How a call runs.

    Attributes:
        operands: what each device has of each; None for one that is absent. Empty: each device
            computes the whole.
        factors: into how many parts a factor is divided, and which of them each device has.
        gathers: what has to be gathered before.
    """

    operands: tuple[Shard | None, ...]
    factors: Mapping[str, tuple[int, Index]]
    gathers: tuple[Gather, ...]


@lru_cache(maxsize=4096)
def make(
    rule: Rule | None, operands: tuple[Operand | None, ...], in_place: tuple[int, ...] = ()
) -> Plan | None:
    """How a call with these operands runs; None if that is not for this module to say.

    Which factors are divided, and how, is what the operands say that are divided already: those
    that are written in place first, then the largest. Operands that say something else, or
    nothing, are brought to that.

    Args:
        in_place: the numbers of operands that are written to.
    """
    present = [(i, operand) for i, operand in enumerate(operands) if operand is not None]
    if any(tiling.is_manual(operand.sharding) for _, operand in present):
        return None
    tilings = {
        i: read
        for i, operand in present
        if operand.sharding is not None
        and (read := tiling.read(operand.sharding, len(operand.shape))) is not None
    }
    divided = [i for i, each in tilings.items() if not each.is_whole]
    if not divided:
        return None
    divided.sort(key=lambda i: (i not in in_place, -operands[i].num_bytes))
    if rule is None:
        gathers = [
            _gather(i, operands[i], tilings[i], operands[i].shape, "there is no sharding rule")
            for i in divided
        ]
        return Plan((), {}, tuple(gathers))
    factors, reasons = _factors(rule, operands, {i: tilings[i] for i in divided})
    shards = []
    for dims, operand in zip(rule.operands, operands, strict=True):
        shards.append(operand and _shard(rule.dims(len(operand.shape), dims), operand, factors))
    gathers = [
        _gather(i, operands[i], tilings[i], shards[i].shape, reasons[i])
        for i in divided
        if i in reasons
    ]
    if not factors:
        return Plan((), {}, tuple(gathers))
    # XLA compares shardings by their meaning, but torch_xla by their bytes.
    for i in divided:
        if _tiling(rule.dims(len(operands[i].shape), rule.operands[i]), factors) == tilings[i]:
            shards[i] = shards[i]._replace(sharding=operands[i].sharding)
    return Plan(tuple(shards), factors, tuple(gathers))


def results(
    plan: Plan,
    rule: Rule,
    shapes: Sequence[Shape],
    operands: Sequence[Operand | None],
    aliases: Mapping[int, int],
) -> tuple[Shard, ...]:
    """What each device has of the results that the rule names.

    Args:
        shapes: of the whole results.
        operands: those that the plan is of.
        aliases: of results in an operand's buffer, the operand's number.

    Raises:
        ValueError: a result has another size than the rule says.
    """
    sizes = rule.sizes([operand and operand.shape for operand in operands])
    shards = []
    for result, (declared, shape) in enumerate(zip(rule.results, shapes, strict=True)):
        dims = rule.dims(len(shape), declared)
        for dim, size in zip(dims, shape, strict=True):
            known = [factor if isinstance(factor, int) else sizes.get(factor) for factor in dim]
            if dim and None not in known and prod(known) != size:
                raise ValueError(
                    f"sharding_rule {rule.text!r}: result {result} has {size} where the operands "
                    f"say {prod(known)}"
                )
        if result not in aliases:
            shards.append(_shard(dims, Operand(shape, 0, None), plan.factors))
            continue
        shard, own = plan.operands[aliases[result]], operands[aliases[result]].sharding
        # torch_xla marks the tensor that is written as it was: with another sharding it aborts.
        shards.append(shard._replace(marked=own is None or own == shard.sharding))
    return tuple(shards)


def _factors(
    rule: Rule, operands: Sequence[Operand | None], tilings: Mapping[int, Tiling]
) -> tuple[dict[str, tuple[int, Index]], dict[int, str]]:
    """How factors are divided; and of operands that cannot stay divided as they are, why."""
    sizes = rule.sizes([operand and operand.shape for operand in operands])
    factors: dict[str, tuple[int, Index]] = {}
    reasons: dict[int, str] = {}
    for i, own in tilings.items():
        dims = rule.dims(len(operands[i].shape), rule.operands[i])
        for number, (dim, count, index) in enumerate(
            zip(dims, own.counts, own.indices, strict=True)
        ):
            if count == 1:
                continue
            divided = _split(dim, count, index, sizes)
            if divided is None:
                what = f"dimension {number}, of {operands[i].shape[number]},"
                why = (
                    f"is not divided into {count} equal parts of {' and '.join(map(str, dim))}"
                    if dim
                    else "is one that each device needs whole"
                )
                reasons.setdefault(i, f"{what} {why}")
                continue
            added = {name: each for name, each in divided.items() if name not in factors}
            if _is_product(factors | added):
                factors |= added
    every = [rule.dims(len(o.shape), d) for o, d in zip(operands, rule.operands, strict=True) if o]
    for dims in every:
        for dim in dims:
            _drop_scattered(dim, sizes, factors)
    return factors, reasons


def _split(dim: Dim, count: int, index: Index, sizes: Sizes) -> dict[str, tuple[int, Index]] | None:
    """What the tiles of a dimension are of its factors; None if they are no equal parts."""
    divided, rest = {}, count
    for factor in dim:
        if rest == 1:
            break
        size = sizes.get(factor) if isinstance(factor, str) else None
        if size is None:
            return None
        parts = rest if size % rest == 0 else size
        if parts == 0 or rest % parts:
            return None
        rest //= parts
        if parts > 1:
            divided[factor] = parts, tuple(tile // rest % parts for tile in index)
        # Only if every index of this one is on a device of its own, the next one is divided.
    return divided if rest == 1 and divided else None


def _is_product(factors: Mapping[str, tuple[int, Index]]) -> bool:
    """Whether the devices are divided equally among the tiles of all factors together."""
    tiles = list(zip(*(index for _, index in factors.values()), strict=True))
    return len(set(tiles)) == prod(count for count, _ in factors.values()) and (
        len({tiles.count(tile) for tile in set(tiles)}) <= 1
    )


def _drop_scattered(dim: Dim, sizes: Sizes, factors: dict[str, tuple[int, Index]]) -> None:
    """Leaves factors whole whose parts would not lie together in this dimension."""
    together = True
    for factor in dim:
        count, _ = factors.get(factor, (1, ()))
        if count > 1 and not together:
            del factors[factor]
            count = 1
        size = factor if isinstance(factor, int) else sizes.get(factor)
        together = together and count == size


def _tiling(dims: Sequence[Dim], factors: Mapping[str, tuple[int, Index]]) -> Tiling:
    counts, indices = [], []
    for dim in dims:
        parts = [factors[factor] for factor in dim if factor in factors]
        count, index = 1, ()
        for parts_count, parts_index in parts:
            index = tuple(
                each * parts_count + part
                for each, part in zip(index or [0] * len(parts_index), parts_index, strict=True)
            )
            count *= parts_count
        counts.append(count)
        indices.append(index)
    return Tiling(tuple(counts), tuple(indices))


def _shard(
    dims: Sequence[Dim], operand: Operand, factors: Mapping[str, tuple[int, Index]]
) -> Shard:
    made = _tiling(dims, factors)
    shape = tuple(size // count for size, count in zip(operand.shape, made.counts, strict=True))
    return Shard(tiling.write(made), shape)


def _gather(number: int, operand: Operand, own: Tiling, needed: Shape, reason: str) -> Gather:
    elements = max(prod(operand.shape), 1)
    kept = prod(-(-size // count) for size, count in zip(operand.shape, own.counts, strict=True))
    received = operand.num_bytes * max(prod(needed) - kept, 0) // elements
    return Gather(number, str(own), received, reason)


_warned: set[tuple[str, Gather]] = set()


def report(caller: str, names: Sequence[str], gathers: Sequence[Gather]) -> None:
    """Says once what a call gathers.

    Args:
        caller: the target or operator.
        names: those of the operands.

    Raises:
        RuntimeError: the environment variable TORCH_XLA_EXT_REFUSE_GATHERS asks for it.
    """
    refused = os.environ.get(REFUSE_ENVIRONMENT, "0") not in ("", "0")
    for gather in gathers:
        key = caller, gather
        if not refused and key in _warned:
            continue
        text = (
            f"{caller}: {names[gather.operand]}, sharded as {gather.sharding}, is gathered before "
            f"each call, {gather.num_bytes:,} bytes on each device: {gather.reason}; give the "
            "operator a sharding_rule, or shard another dimension (docs/distributed.md)"
        )
        if refused:
            raise RuntimeError(text)
        _warned.add(key)
        warnings.warn(text, stacklevel=3)
