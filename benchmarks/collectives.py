"""Lists the collectives of a program, from the HLO that XLA dumps after its passes."""

from __future__ import annotations

import math
import re

# Bits of an element, by the letters and digits that name its type.
_BITS = {"pred": 8, "bf16": 16}
_COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)
_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")


def _num_bytes(kind: str, dims: str) -> int:
    bits = _BITS.get(kind) or int(re.search(r"\d+", kind)[0])
    return math.prod(map(int, filter(None, dims.split(",")))) * bits // 8


def collectives(program: str) -> dict[str, dict[str, int]]:
    """Of each kind, how many there are, and the bytes of what each device has after them."""
    result: dict[str, dict[str, int]] = {}
    for shape, kind, started in _COLLECTIVE.findall(program):
        arrays = _ARRAY.findall(shape)
        if started and kind != "all-reduce":  # operands and then results
            arrays = arrays[len(arrays) // 2 :][: max(1, len(arrays) // 2)]
        entry = result.setdefault(kind, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += sum(_num_bytes(*array) for array in arrays)
    return result
