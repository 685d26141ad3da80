"""Read and write XLA's OpSharding as tilings of arrays.

A sharding is a serialized protocol buffer ``xla::OpSharding`` (xla/xla_data.proto), for which there
is no Python class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from torch_xla_ext import protobuf_wire_format as wire

# For each device, the index of its tile in a dimension.
Index = tuple[int, ...]

REPLICATED = b""

# Values of OpSharding.Type.
_REPLICATED, _TUPLE, _OTHER, _MANUAL = 0, 2, 3, 4
# Field numbers of OpSharding.
_TYPE, _DIMENSIONS, _DEVICES, _ELEMENTS, _REPLICATE_LAST = 1, 3, 4, 5, 6
_LAST_TILE_DIMS, _IOTA_SHAPE, _IOTA_PERMUTATION, _NAMED = 8, 9, 10, 14
# Fields of NamedShardingProto, in XLA since 2026: a mesh, and the mesh axes of each dimension.
_MESH, _NAMED_DIMENSIONS, _UNREDUCED_AXES, _MANUAL_AXES = 2, 3, 5, 7
_MESH_AXES, _MESH_DEVICES, _MESH_IOTA = 1, 2, 3
_AXIS_SIZE = 2
_AXIS_INDEX, _SUB_AXIS = 1, 2
_PRE_SIZE, _SIZE = 1, 2


@dataclass(frozen=True)
class Tiling:
    """The division of an array into tiles.

    Attributes:
        counts: the number of tiles in each dimension.
        indices: for each divided dimension, the index of each device's tile; () for the others.
    """

    counts: tuple[int, ...]
    indices: tuple[Index, ...]

    @property
    def is_whole(self) -> bool:
        """True if each device has the whole array."""
        return all(count == 1 for count in self.counts)

    def __str__(self) -> str:
        return f"devices={list(self.counts)}" if not self.is_whole else "replicated"


def is_manual(sharding: bytes | None) -> bool:
    """Return whether the sharding is manual: the array is one device's part already."""
    if sharding is None:
        return False
    message = _Message(sharding)
    named = message.last(_NAMED)
    if named is not None:
        return _Message(named).last(_MANUAL_AXES) is not None
    return message.last(_TYPE) == _MANUAL


def elements(sharding: bytes, count: int) -> list[bytes]:
    """Return the shardings of a tuple's elements, or of a single array."""
    message = _Message(sharding)
    if message.last(_TYPE) == _TUPLE:
        return [bytes(element) for element in message.all(_ELEMENTS)]
    return [sharding] * count


def join(shardings: Sequence[bytes]) -> bytes:
    """Return the sharding of a tuple with these elements, or a single element's own sharding."""
    if len(shardings) == 1:
        return shardings[0]
    return wire.number(_TYPE, _TUPLE) + b"".join(wire.field(_ELEMENTS, s) for s in shardings)


@lru_cache(maxsize=1024)
def read(sharding: bytes, rank: int) -> Tiling | None:
    """Return an OpSharding's tiling; None for an unknown kind of sharding."""
    message = _Message(sharding)
    named = message.last(_NAMED)
    if named is not None:
        return _read_named(_Message(named), rank)
    kind = message.last(_TYPE) or _REPLICATED
    if kind != _OTHER:
        return Tiling((1,) * rank, ((),) * rank) if kind == _REPLICATED else None
    if set(message.numbers(_LAST_TILE_DIMS)) - {_REPLICATED}:
        return None
    shape = message.numbers(_DIMENSIONS)
    iota = message.numbers(_IOTA_SHAPE)
    if iota:
        devices = _iota(iota, message.numbers(_IOTA_PERMUTATION)).reshape(shape)
    else:
        devices = np.array(message.numbers(_DEVICES)).reshape(shape)
    if not rank <= len(shape) <= rank + 1 or sorted(devices.flat) != list(range(devices.size)):
        return None
    tiles = np.empty((len(shape), devices.size), dtype=np.int64)
    tiles[:, devices.ravel()] = np.indices(shape).reshape(len(shape), -1)
    return _tiling(shape[:rank], tiles[:rank])


@lru_cache(maxsize=1024)
def write(tiling: Tiling) -> bytes:
    """Return the OpSharding of a tiling, with an explicit list of the devices."""
    if tiling.is_whole:
        return REPLICATED
    rows = tiling.indices
    num_devices = len(next(row for row in rows if row))
    tiles: dict[tuple[int, ...], list[int]] = {}
    for device in range(num_devices):
        tiles.setdefault(tuple(row[device] if row else 0 for row in rows), []).append(device)
    devices = [device for tile in sorted(tiles) for device in tiles[tile]]
    copies = num_devices // len(tiles)
    shape = [*tiling.counts, copies] if copies > 1 else list(tiling.counts)
    return b"".join(
        [
            wire.number(_TYPE, _OTHER),
            wire.packed(_DIMENSIONS, shape),
            wire.packed(_DEVICES, devices),
            wire.number(_REPLICATE_LAST, 1) if copies > 1 else b"",
        ]
    )


def _read_named(named: _Message, rank: int) -> Tiling | None:
    dimensions = [_Message(each) for each in named.all(_NAMED_DIMENSIONS)]
    axes_of = [[_Message(axis) for axis in dimension.all(1)] for dimension in dimensions]
    if named.last(_MANUAL_AXES) is not None or named.last(_UNREDUCED_AXES) is not None:
        return None
    if not any(axes_of):
        return Tiling((1,) * rank, ((),) * rank)
    if len(axes_of) != rank:
        return None
    mesh = _Message(named.last(_MESH) or b"")
    sizes = [_Message(axis).last(_AXIS_SIZE) or 0 for axis in mesh.all(_MESH_AXES)]
    devices = np.array(mesh.numbers(_MESH_DEVICES) or range(prod(sizes)))
    iota = mesh.last(_MESH_IOTA)
    if iota is not None:
        message = _Message(iota)
        devices = _iota(message.numbers(1), message.numbers(2)).ravel()
    coordinates = np.empty((len(sizes), devices.size), dtype=np.int64)
    coordinates[:, devices] = np.indices(sizes).reshape(len(sizes), -1)
    counts, tiles = [], []
    for axes in axes_of:
        count, tile = 1, np.zeros(devices.size, dtype=np.int64)
        for axis in axes:
            index = axis.last(_AXIS_INDEX) or 0
            size, own = sizes[index], coordinates[index]
            sub = axis.last(_SUB_AXIS)
            if sub is not None:
                part = _Message(sub)
                full, size = size, part.last(_SIZE) or 1
                own = own // (full // ((part.last(_PRE_SIZE) or 1) * size)) % size
            tile, count = tile * size + own, count * size
        counts.append(count)
        tiles.append(tile)
    return _tiling(counts, np.array(tiles))


def _iota(shape: Sequence[int], permutation: Sequence[int]) -> np.ndarray:
    """Return the devices 0, 1, 2, … arranged in `shape`, with axes transposed by `permutation`."""
    return np.arange(prod(shape)).reshape(shape).transpose(list(permutation) or range(len(shape)))


def _tiling(counts: Sequence[int], tiles: np.ndarray) -> Tiling:
    rows = zip(counts, tiles.tolist(), strict=True)
    return Tiling(tuple(counts), tuple(tuple(row) if count > 1 else () for count, row in rows))


class _Message:
    """A message's fields."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        for number, value in wire.fields(memoryview(data)):
            self._fields.setdefault(number, []).append(value)

    def all(self, number: int) -> list[memoryview]:
        """Return the messages of a repeated field."""
        return self._fields.get(number, [])

    def last(self, number: int) -> int | memoryview | None:
        """Return the value of a field; None if the message has none."""
        values = self._fields.get(number)
        return values[-1] if values else None

    def numbers(self, number: int) -> list[int]:
        """Return the numbers of a repeated field, packed or not."""
        found: list[int] = []
        for value in self.all(number):
            found += [value] if isinstance(value, int) else wire.varints(value)
        return found
