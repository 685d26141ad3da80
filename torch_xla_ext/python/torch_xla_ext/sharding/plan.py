"""Plan a sharded call from its rule and its operands' shardings: the shard of each tensor."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from torch_xla_ext.sharding import tiling
from torch_xla_ext.sharding.rule import Dim, Rule, Sizes, names
from torch_xla_ext.sharding.tiling import Index, Tiling

# Turns the warning about a gathered operand into an error.
REFUSE_ENVIRONMENT = "TORCH_XLA_EXT_REFUSE_GATHERS"

Shape = tuple[int, ...]
Groups = tuple[tuple[int, ...], ...]


class Array(NamedTuple):
    """An operand or result of a call.

    Attributes:
        num_bytes: the size of the whole array.
        sharding: a serialized OpSharding; None if the array has none.
    """

    shape: Shape
    num_bytes: int
    sharding: bytes | None = None


class Shard(NamedTuple):
    """Each device's part of an array.

    Attributes:
        sharding: a serialized OpSharding.
        shape: the part's shape.
    """

    sharding: bytes
    shape: Shape


@dataclass(frozen=True)
class Gather:
    """An operand that must be gathered, because the call cannot use its sharding.

    Attributes:
        operand: its index.
        sharding: a description of its sharding.
        num_bytes: the bytes that each device receives.
        reason: why it must be gathered.
    """

    operand: int
    sharding: str
    num_bytes: int
    reason: str


@dataclass(frozen=True)
class Plan:
    """The division of a call among the devices.

    Attributes:
        operands: the shards; None for an absent operand.
        results: the shards of the results that the rule names.
        is_divided: whether any factor is divided; if none is, each device computes the whole call.
        sums: for each result, the groups of devices whose results must be added; () if none.
        gathers: the operands that must be gathered first.
    """

    operands: tuple[Shard | None, ...]
    results: tuple[Shard, ...]
    is_divided: bool
    sums: tuple[Groups, ...]
    gathers: tuple[Gather, ...]


@lru_cache(maxsize=4096)
def make(
    rule: Rule | None,
    operands: tuple[Array | None, ...],
    results: tuple[Array, ...],
    in_place: tuple[int, ...] = (),
) -> Plan:
    """Return the plan that divides a call with these operands and results.

    A factor takes the division of an array that is already divided: operands that are written in
    place come first, then the largest arrays, operands before results. XLA reshards the operands
    and results with another sharding, or with none, to the plan's.

    Args:
        in_place: the indices of the operands that are written to.
    """
    arrays = (*operands, *results)
    tilings = {
        i: read
        for i, array in enumerate(arrays)
        if array is not None
        and array.sharding is not None
        and (read := tiling.read(array.sharding, len(array.shape))) is not None
    }
    divided = [i for i, each in tilings.items() if not each.is_whole]
    divided.sort(key=lambda i: (i not in in_place, -arrays[i].num_bytes, i))
    if rule is None:
        return whole(operands, results, "there is no sharding rule")
    factors, reasons = _factors(rule, arrays, {i: tilings[i] for i in divided})
    dims = (*rule.operands, *rule.results)
    shards = [
        array and _shard(rule.dims(len(array.shape), each), array, factors)
        for each, array in zip(dims, arrays, strict=True)
    ]
    gathers = [
        _gather(i, arrays[i], tilings[i], shards[i].shape, reasons[i])
        for i in sorted(reasons)
        if i < len(operands)
    ]
    count = len(operands)
    sums = [
        _sum_groups([name for name in rule.sums if name not in names(each)], factors)
        for each in rule.results
    ]
    return Plan(
        tuple(shards[:count]), tuple(shards[count:]), bool(factors), tuple(sums), tuple(gathers)
    )


def whole(operands: Sequence[Array | None], results: Sequence[Array], reason: str) -> Plan:
    """Return the plan with which each device computes the whole call.

    Args:
        reason: why operands that are divided are gathered.
    """
    gathers = []
    for i, operand in enumerate(operands):
        if operand is None or operand.sharding is None:
            continue
        own = tiling.read(operand.sharding, len(operand.shape))
        if own is not None and not own.is_whole:
            gathers.append(_gather(i, operand, own, operand.shape, reason))
    return Plan(
        tuple(operand and Shard(tiling.REPLICATED, operand.shape) for operand in operands),
        tuple(Shard(tiling.REPLICATED, result.shape) for result in results),
        False,
        ((),) * len(results),
        tuple(gathers),
    )


def check_sizes(rule: Rule, operands: Sequence[Shape | None], results: Sequence[Shape]) -> None:
    """Check that the sizes of the whole arrays fit a rule.

    Raises:
        ValueError: the sizes do not fit.
    """
    sizes = rule.sizes(operands)
    for result, (declared, shape) in enumerate(zip(rule.results, results, strict=True)):
        for dim, size in zip(rule.dims(len(shape), declared), shape, strict=True):
            known = [factor if isinstance(factor, int) else sizes.get(factor) for factor in dim]
            if dim and None not in known and prod(known) != size:
                raise ValueError(
                    f"sharding_rule {rule.text!r}: result {result} has {size} where the operands "
                    f"imply {prod(known)}"
                )


def _factors(
    rule: Rule, arrays: Sequence[Array | None], tilings: Mapping[int, Tiling]
) -> tuple[dict[str, tuple[int, Index]], dict[int, str]]:
    """Return how each factor is divided, and the arrays that must be resharded, with the reasons.

    Args:
        arrays: operands, then results; both results and `tilings` use their indices here.
        tilings: the tilings of the divided arrays. Of two that divide a factor differently, the
            earlier one counts.
    """
    sizes = rule.sizes([array and array.shape for array in arrays[: len(rule.operands)]])
    declared = (*rule.operands, *rule.results)
    factors: dict[str, tuple[int, Index]] = {}
    reasons: dict[int, str] = {}
    for i, own in tilings.items():
        dims = rule.dims(len(arrays[i].shape), declared[i])
        for number, (dim, count, index) in enumerate(
            zip(dims, own.counts, own.indices, strict=True)
        ):
            if count == 1:
                continue
            divided = _split(dim, count, index, sizes)
            if divided is None:
                what = f"dimension {number}, of {arrays[i].shape[number]},"
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
    every = [rule.dims(len(a.shape), d) for a, d in zip(arrays, declared, strict=True) if a]
    for dims in every:
        for dim in dims:
            _drop_scattered(dim, sizes, factors)
    return factors, reasons


def _split(dim: Dim, count: int, index: Index, sizes: Sizes) -> dict[str, tuple[int, Index]] | None:
    """Split a dimension's tiles into its factors; return None if the parts are not equal."""
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
        # The next factor is divided only if every index of this one is on a device of its own.
    return divided if rest == 1 and divided else None


def _is_product(factors: Mapping[str, tuple[int, Index]]) -> bool:
    """Return whether the devices are divided equally among the tiles of all factors together."""
    tiles = list(zip(*(index for _, index in factors.values()), strict=True))
    return len(set(tiles)) == prod(count for count, _ in factors.values()) and (
        len({tiles.count(tile) for tile in set(tiles)}) <= 1
    )


def _drop_scattered(dim: Dim, sizes: Sizes, factors: dict[str, tuple[int, Index]]) -> None:
    """Leave a factor whole if its parts would not be contiguous in this dimension."""
    together = True
    for factor in dim:
        count, _ = factors.get(factor, (1, ()))
        if count > 1 and not together:
            del factors[factor]
            count = 1
        size = factor if isinstance(factor, int) else sizes.get(factor)
        together = together and count == size


def _sum_groups(summed: Sequence[str], factors: Mapping[str, tuple[int, Index]]) -> Groups:
    """Return the groups of devices whose partial results are to be added."""
    summed = [name for name in summed if name in factors]
    if not summed:
        return ()
    others = [name for name in factors if name not in summed]
    num_devices = len(factors[summed[0]][1])
    # For each tile of the result: the devices that have each part of it.
    tiles: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
    for device in range(num_devices):
        tile = tuple(factors[name][1][device] for name in others)
        part = tuple(factors[name][1][device] for name in summed)
        tiles.setdefault(tile, {}).setdefault(part, []).append(device)
    return tuple(group for parts in tiles.values() for group in zip(*parts.values(), strict=True))


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


def _shard(dims: Sequence[Dim], array: Array, factors: Mapping[str, tuple[int, Index]]) -> Shard:
    made = _tiling(dims, factors)
    shape = tuple(size // count for size, count in zip(array.shape, made.counts, strict=True))
    return Shard(tiling.write(made), shape)


def _gather(number: int, operand: Array, own: Tiling, needed: Shape, reason: str) -> Gather:
    elements = max(prod(operand.shape), 1)
    kept = prod(-(-size // count) for size, count in zip(operand.shape, own.counts, strict=True))
    received = operand.num_bytes * max(prod(needed) - kept, 0) // elements
    return Gather(number, str(own), received, reason)


_warned: set[tuple[str, Gather]] = set()


def report(caller: str, operands: Sequence[str], gathers: Sequence[Gather]) -> None:
    """Warn once about the operands that a call gathers.

    Args:
        caller: the target or operator.
        operands: their names.

    Raises:
        RuntimeError: instead of the warning, if TORCH_XLA_EXT_REFUSE_GATHERS is set.
    """
    refused = os.environ.get(REFUSE_ENVIRONMENT, "0") not in ("", "0")
    for gather in gathers:
        key = caller, gather
        if not refused and key in _warned:
            continue
        name = operands[gather.operand]
        text = (
            f"{caller}: {name}, sharded as {gather.sharding}, is gathered before "
            f"each call, {gather.num_bytes:,} bytes on each device: {gather.reason}; give the "
            "operator a sharding_rule, or shard another dimension (docs/distributed.md)"
        )
        if refused:
            raise RuntimeError(text)
        _warned.add(key)
        warnings.warn(text, stacklevel=2)
