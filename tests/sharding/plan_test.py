"""Each device's part of a call's tensors, from a rule and the operands' shardings."""

from torch_xla_ext.sharding import plan, tiling
from torch_xla_ext.sharding.plan import Array, Plan
from torch_xla_ext.sharding.rule import Rule, parse
from torch_xla_ext.sharding.tiling import Tiling

ATTENTION = parse("s (k g) _, _ _ k _ -> s (k g) _")
# Devices 0 to 3 as [[0, 1], [2, 3]].
FIRST, SECOND = (0, 0, 1, 1), (0, 1, 0, 1)


def operand(shape: tuple[int, ...], **divided: tuple[int, tuple[int, ...]]) -> Array:
    """`d1=(2, FIRST)`: dimension 1 has two parts; FIRST[i] is the part of device i."""
    counts, indices = [1] * len(shape), [()] * len(shape)
    for name, (count, index) in divided.items():
        counts[int(name[1:])], indices[int(name[1:])] = count, index
    sharding = tiling.write(Tiling(tuple(counts), tuple(indices))) if divided else None
    num_bytes = 2
    for size in shape:
        num_bytes *= size
    return Array(shape, num_bytes, sharding)


def make(
    rule: Rule | None,
    operands: tuple[Array, ...],
    result: tuple[int, ...] | Array,
    in_place: tuple[int, ...] = (),
) -> Plan:
    results = (result if isinstance(result, Array) else operand(result),)
    return plan.make(rule, operands, results, in_place)


def shapes(made: Plan) -> list[tuple[int, ...]]:
    return [shard.shape for shard in made.operands]


def test_reading_a_written_sharding() -> None:
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
    made = make(ATTENTION, (query, cache), query.shape)
    assert shapes(made) == [(4, 8, 64), (9, 16, 2, 64)]
    assert made.gathers == ()
    (result,) = made.results
    assert result.shape == (4, 8, 64)
    assert tiling.read(result.sharding, 3) == Tiling((2, 2, 1), (FIRST, SECOND, ()))


def test_more_devices_than_kv_heads() -> None:
    every = (0, 1, 2, 3)
    query, cache = operand((8, 16, 64), d1=(4, every)), operand((9, 16, 2, 64))
    made = make(ATTENTION, (query, cache), query.shape)
    assert shapes(made) == [(8, 4, 64), (9, 16, 1, 64)]
    assert tiling.read(made.operands[1].sharding, 4).indices[2] == FIRST


def test_query_heads_of_a_kv_head_that_others_share() -> None:
    """A device would have query heads of each kv head, which are not contiguous."""
    query = operand((8, 16, 64), d1=(2, FIRST))
    cache = operand((9, 16, 4, 64), d2=(4, (0, 1, 2, 3)))
    made = make(ATTENTION, (query, cache), query.shape)
    assert shapes(made) == [(8, 4, 64), (9, 16, 1, 64)]


def test_one_of_two_dimensions_is_gathered() -> None:
    query = operand((8, 16, 64))
    cache = operand((10, 16, 4, 64), d0=(2, FIRST), d2=(2, SECOND))
    made = make(ATTENTION, (query, cache), query.shape)
    assert shapes(made) == [(8, 8, 64), (10, 16, 2, 64)]
    (gather,) = made.gathers
    assert (gather.operand, gather.num_bytes) == (1, 2 * 5 * 16 * 2 * 64)
    assert gather.reason == "dimension 0, of 10, is one that each device needs whole"


def test_who_decides() -> None:
    """Operands written in place decide first, then the largest operands, then the results."""
    rule = parse("n m, n m -> n m")
    rows, columns = operand((8, 8), d0=(2, (0, 1))), operand((8, 8), d1=(2, (0, 1)))
    assert shapes(make(rule, (rows, columns), (8, 8))) == [(4, 8), (4, 8)]
    assert shapes(make(rule, (rows, columns), (8, 8), (1,))) == [(8, 4), (8, 4)]
    assert shapes(make(rule, (rows, operand((8, 8))), columns)) == [(4, 8), (4, 8)]
    assert shapes(make(rule, (operand((8, 8)),) * 2, columns)) == [(8, 4), (8, 4)]
    assert make(rule, (rows, columns), (8, 8)).gathers == ()


def test_nothing_is_divided() -> None:
    rule = parse("n -> n")
    for array in (operand((8,)), Array((8,), 16, b"")):  # replicated
        made = make(rule, (array,), (8,))
        assert (made.is_divided, shapes(made), made.gathers) == (False, [(8,)], ())
    divided = operand((8,), d0=(2, (0, 1)))
    made = make(None, (divided,), (8,))
    assert (made.is_divided, shapes(made)) == (False, [(8,)])
    assert [gather.reason for gather in made.gathers] == ["there is no sharding rule"]


def test_sums() -> None:
    """The groups of devices have different terms of the same tile."""
    rule = parse("n t, t -> n; sum t")
    matrix, vector = operand((8, 6), d0=(2, FIRST), d1=(2, SECOND)), operand((6,))
    made = make(rule, (matrix, vector), (8,))
    assert shapes(made) == [(4, 3), (3,)]
    assert made.sums == (((0, 1), (2, 3)),)
    # Two devices have each half of the sum's terms.
    made = make(rule, (operand((8, 6), d1=(2, FIRST)), vector), (8,))
    assert made.sums == (((0, 2), (1, 3)),)
    made = make(rule, (operand((8, 6), d0=(2, FIRST)), vector), (8,))
    assert made.sums == ((),)


def test_the_sharding_of_a_tuple() -> None:
    first, second = (operand((8,), d0=(2, (0, 1))).sharding, tiling.REPLICATED)
    joined = tiling.join([first, second])
    assert tiling.elements(joined, 2) == [first, second]
    assert tiling.join([first]) == first
    assert tiling.elements(first, 1) == [first]


def test_a_named_sharding() -> None:
    """Newer XLA's {mesh: [2, 2], dimensions: [[axis 1], []]}, and one that divides nothing."""

    def message(number: int, *fields: bytes) -> bytes:
        content = b"".join(fields)
        return bytes([number << 3 | 2, len(content)]) + content

    mesh = message(2, message(1, bytes([16, 2])), message(1, bytes([16, 2])))
    split = message(3, message(1, bytes([8, 1])))
    named = message(14, mesh, split, message(3))
    assert tiling.read(named, 2) == Tiling((2, 1), (SECOND, ()))
    whole = message(14, mesh, message(3), message(3))
    assert tiling.read(whole, 2) == Tiling((1, 1), ((), ()))
    assert tiling.is_manual(message(14, mesh, message(7, bytes([8, 0]))))
    assert not tiling.is_manual(whole)
