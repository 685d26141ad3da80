"""The parts of a call that devices may have: plans make them, and functions describe them."""

import itertools
import random

import pytest

from torch_xla_ext.sharding import plan, tiling
from torch_xla_ext.sharding.parts import Parts, divisions
from torch_xla_ext.sharding.plan import Array
from torch_xla_ext.sharding.rule import parse
from torch_xla_ext.sharding.tiling import Tiling

# Rules with the shapes of a call's operands and results.
CALLS = [
    ("n m, _ m -> n m", [(8, 6), (5, 6)], [(8, 6)]),
    ("s (k g) _, _ k -> s (k g)", [(4, 16, 3), (7, 4)], [(4, 16)]),
    ("n t, t -> n; sum t", [(12, 8), (8,)], [(12,)]),
    ("... -> ...", [(4, 2, 6)], [(4, 2, 6)]),
    ("n (k 2), _ -> n k", [(1, 8), (3,)], [(1, 4)]),
    ("n, n -> n", [(0,), (0,)], [(0,)]),
]


def tiled(shape: tuple[int, ...], num_devices: int, rng: random.Random) -> Array:
    """The tiles of an array that XLA divides in a random way, perhaps unevenly."""
    counts = [1] * len(shape)
    for i in range(len(shape)):
        left = num_devices
        for count in counts:
            left //= count
        counts[i] = rng.choice([c for c in range(1, left + 1) if left % c == 0])
    copies = num_devices
    for count in counts:
        copies //= count
    devices = list(range(num_devices))
    rng.shuffle(devices)
    tiles = list(itertools.product(*map(range, counts))) * copies
    of_device = dict(zip(devices, tiles, strict=True))
    indices = [
        tuple(of_device[d][i] for d in range(num_devices)) if count > 1 else ()
        for i, count in enumerate(counts)
    ]
    return Array(shape, 4, tiling.write(Tiling(tuple(counts), tuple(indices))))


@pytest.mark.parametrize("num_devices", [2, 4, 6, 8])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_every_plan_has_a_part(call: tuple, num_devices: int) -> None:
    text, operands, results = call
    rule, rng = parse(text), random.Random(num_devices)
    parts = set(divisions(rule, operands, results, num_devices))
    assert (tuple(operands), tuple(results)) in parts
    for _ in range(200):
        arrays = [tiled(shape, num_devices, rng) for shape in (*operands, *results)]
        count = len(operands)
        made = plan.make(rule, tuple(arrays[:count]), tuple(arrays[count:]))
        shapes = [tuple(shard.shape for shard in each) for each in (made.operands, made.results)]
        assert tuple(shapes) in parts


def test_an_absent_operand() -> None:
    found = set(divisions(parse("n, n -> n"), [(4,), None], [(4,)], 2))
    assert found == {(((4,), None), ((4,),)), (((2,), None), ((2,),))}


def test_parts_that_a_function_refuses() -> None:
    calls = []

    def function(operands: tuple, results: tuple) -> int:
        calls.append((operands, results))
        if operands[0][0] < 4:
            raise ValueError("too small")
        return operands[0][0]

    parts = Parts(function, parse("n -> n"), [(8,)], [(8,)], 4)
    assert [operands for operands, _ in calls] == [((8,),), ((4,),), ((2,),)]
    assert parts.at([Array((4,), 16)], [Array((4,), 16)]) == 4
    with pytest.raises(ValueError, match="too small"):
        parts.at([Array((2,), 8)], [Array((2,), 8)])
    assert len(calls) == 3
    other = Parts(lambda operands, results: 8, parse("n -> n"), [(8,)], [(8,)], 4)
    assert repr(parts) != repr(other)
