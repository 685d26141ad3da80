"""What each device has of a call's tensors, from a rule and the shardings of operands."""

from __future__ import annotations

from torch_xla_ext.sharding import plan, tiling
from torch_xla_ext.sharding.plan import Operand
from torch_xla_ext.sharding.rule import parse
from torch_xla_ext.sharding.tiling import Tiling

ATTENTION = parse("s (k g) _, _ _ k _ -> s (k g) _")
# Devices 0 to 3 as [[0, 1], [2, 3]].
FIRST, SECOND = (0, 0, 1, 1), (0, 1, 0, 1)


def operand(shape: tuple[int, ...], **divided: tuple[int, tuple[int, ...]]) -> Operand:
    """`d1=(2, FIRST)`: dimension 1 is in two parts, of which each device has this one."""
    counts, indices = [1] * len(shape), [()] * len(shape)
    for name, (count, index) in divided.items():
        counts[int(name[1:])], indices[int(name[1:])] = count, index
    sharding = tiling.write(Tiling(tuple(counts), tuple(indices))) if divided else None
    num_bytes = 2
    for size in shape:
        num_bytes *= size
    return Operand(shape, num_bytes, sharding)


def shapes(made: plan.Plan) -> list[tuple[int, ...]]:
    return [shard.shape for shard in made.operands]


def test_reading_what_was_written() -> None:
    each = Tiling((2, 1, 2), (SECOND, (), FIRST))
    assert tiling.read(tiling.write(each), 3) == each
    part = Tiling((1, 2), ((), SECOND))
    assert tiling.read(tiling.write(part), 2) == part
    assert tiling.read(b"", 2) == Tiling((1, 1), ((), ()))


def test_the_short_form_of_devices() -> None:
    # {devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}
    message = bytes([8, 3, 26, 3, 2, 1, 2, 48, 1, 74, 2, 2, 2, 82, 2, 1, 0])
    assert tiling.read(message, 2) == Tiling((2, 1), (SECOND, ()))


def test_heads_and_sequences() -> None:
    query, cache = operand((8, 16, 64), d0=(2, FIRST)), operand((9, 16, 4, 64), d2=(2, SECOND))
    made = plan.make(ATTENTION, (query, cache))
    assert shapes(made) == [(4, 8, 64), (9, 16, 2, 64)]
    assert made.gathers == ()
    (result,) = plan.results(made, ATTENTION, [(8, 16, 64)], (query, cache), {})
    assert tiling.read(result.sharding, 3) == Tiling((2, 2, 1), (FIRST, SECOND, ()))


def test_more_devices_than_kv_heads() -> None:
    every = (0, 1, 2, 3)
    query, cache = operand((8, 16, 64), d1=(4, every)), operand((9, 16, 2, 64))
    made = plan.make(ATTENTION, (query, cache))
    assert shapes(made) == [(8, 4, 64), (9, 16, 1, 64)]
    assert tiling.read(made.operands[1].sharding, 4).indices[2] == FIRST


def test_query_heads_of_a_kv_head_that_others_share() -> None:
    """A device would have query heads of each kv head, which do not lie together."""
    query = operand((8, 16, 64), d1=(2, FIRST))
    cache = operand((9, 16, 4, 64), d2=(4, (0, 1, 2, 3)))
    made = plan.make(ATTENTION, (query, cache))
    assert shapes(made) == [(8, 4, 64), (9, 16, 1, 64)]


def test_one_of_two_dimensions_is_gathered() -> None:
    query = operand((8, 16, 64))
    cache = operand((10, 16, 4, 64), d0=(2, FIRST), d2=(2, SECOND))
    made = plan.make(ATTENTION, (query, cache))
    assert shapes(made) == [(8, 8, 64), (10, 16, 2, 64)]
    (gather,) = made.gathers
    assert (gather.operand, gather.num_bytes) == (1, 2 * 5 * 16 * 2 * 64)
    assert gather.reason == "dimension 0, of 10, is one that each device needs whole"


def test_who_decides() -> None:
    """What is written in place, then the largest."""
    rule = parse("n m, n m -> n m")
    rows, columns = operand((8, 8), d0=(2, (0, 1))), operand((8, 8), d1=(2, (0, 1)))
    assert shapes(plan.make(rule, (rows, columns))) == [(4, 8), (4, 8)]
    assert shapes(plan.make(rule, (rows, columns), (1,))) == [(8, 4), (8, 4)]
    assert plan.make(rule, (rows, columns)).gathers == ()


def test_nothing_to_do() -> None:
    rule = parse("n -> n")
    assert plan.make(rule, (operand((8,)),)) is None
    assert plan.make(rule, (Operand((8,), 16, b""),)) is None  # replicated
    manual = Operand((8,), 16, bytes([8, 4]))
    assert plan.make(rule, (manual,)) is None
    assert plan.make(None, (manual,)) is None
