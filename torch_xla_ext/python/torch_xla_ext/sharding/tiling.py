"""How a tensor is sharded: reads and writes XLA's OpSharding.

``torch_xla._XLAC._xla_sharding`` returns a tensor's sharding as the bytes of the protocol buffer
``xla::OpSharding`` (xla/xla_data.proto), for which there is no Python class. Calls take such bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

# For each device the number of the tile that it has in a dimension.
Index = tuple[int, ...]

_REPLICATED, _MAXIMAL, _OTHER, _MANUAL, _UNKNOWN = 0, 1, 3, 4, 5
# Field numbers.
_TYPE, _DIMENSIONS, _DEVICES, _REPLICATE_LAST = 1, 3, 4, 6
_LAST_TILE_DIMS, _IOTA_SHAPE, _IOTA_PERMUTATION = 8, 9, 10


@dataclass(frozen=True)
class Tiling:
    """A tensor's division.

    Attributes:
        counts: of each dimension, the number of tiles.
        indices: of each dimension that is divided, which tile each device has; else ().
    """

    counts: tuple[int, ...]
    indices: tuple[Index, ...]

    @property
    def is_whole(self) -> bool:
        """Whether each device has the whole tensor."""
        return all(count == 1 for count in self.counts)

    def __str__(self) -> str:
        return f"devices={list(self.counts)}" if not self.is_whole else "replicated"


def is_manual(sharding: bytes | None) -> bool:
    """Whether the tensor is one device's part already: the user shards by hand."""
    return sharding is not None and _fields(sharding).get(_TYPE) == [_MANUAL]


@lru_cache(maxsize=1024)
def read(sharding: bytes, rank: int) -> Tiling | None:
    """The tiling that an OpSharding says; None if it says none that is known here."""
    fields = _fields(sharding)
    kind = fields.get(_TYPE, [_REPLICATED])[0]
    if kind != _OTHER:
        return Tiling((1,) * rank, ((),) * rank) if kind == _REPLICATED else None
    if set(fields.get(_LAST_TILE_DIMS, [])) - {_REPLICATED}:
        return None
    shape = fields[_DIMENSIONS]
    if _IOTA_SHAPE in fields:
        order = fields.get(_IOTA_PERMUTATION) or range(len(fields[_IOTA_SHAPE]))
        iota = np.arange(np.prod(shape)).reshape(fields[_IOTA_SHAPE])
        devices = iota.transpose(list(order)).reshape(shape)
    else:
        devices = np.array(fields[_DEVICES]).reshape(shape)
    if not rank <= len(shape) <= rank + 1 or sorted(devices.flat) != list(range(devices.size)):
        return None
    tiles = np.empty((len(shape), devices.size), dtype=np.int64)
    tiles[:, devices.ravel()] = np.indices(shape).reshape(len(shape), -1)
    indices = zip(shape[:rank], tiles[:rank].tolist(), strict=True)
    return Tiling(
        tuple(shape[:rank]), tuple(tuple(row) if count > 1 else () for count, row in indices)
    )


@lru_cache(maxsize=1024)
def write(tiling: Tiling) -> bytes:
    """The OpSharding of a tiling.

    It is what torch_xla makes of a mesh with the devices in their order: torch_xla takes shardings
    for different ones if their bytes are.
    """
    if tiling.is_whole:
        return b""
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
            _number(_TYPE, _OTHER),
            _numbers(_DIMENSIONS, shape),
            _numbers(_DEVICES, devices),
            _number(_REPLICATE_LAST, 1) if copies > 1 else b"",
        ]
    )


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _numbers(field: int, values: Sequence[int]) -> bytes:
    packed = b"".join(map(_varint, values))
    return _varint(field << 3 | 2) + _varint(len(packed)) + packed


def _varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def _fields(message: bytes) -> dict[int, list[int]]:
    """The numbers of each field, without fields that are messages."""
    result: dict[int, list[int]] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        begin = position
        while message[position] > 0x7F:
            position += 1
        position += 1
        return next(_varints(message[begin:position]))

    while position < len(message):
        key = varint()
        field, kind = key >> 3, key & 7
        if kind == 0:
            result.setdefault(field, []).append(varint())
            continue
        if kind != 2:
            raise ValueError(f"OpSharding: field {field} has the wire type {kind}")
        size = varint()
        content, position = message[position : position + size], position + size
        if field in (_DIMENSIONS, _DEVICES, _LAST_TILE_DIMS, _IOTA_SHAPE, _IOTA_PERMUTATION):
            result.setdefault(field, []).extend(_varints(content))
    return result
