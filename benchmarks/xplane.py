"""Reads device times from a profile, the XSpace that torch_xla.debug.profiler writes.

The few messages of xplane.proto (of tsl) that are needed, without protobuf's library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The numbers and values of a message's fields."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at : at + size], at + size
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"not a message: a field of wire type {kind}")
        yield key >> 3, value


def _text(value: int | memoryview) -> str:
    return bytes(value).decode(errors="replace")


def plane_names(path: Path) -> list[str]:
    """The planes of a profile: a GPU's is "/device:GPU:0"."""
    return [name for name, _ in _planes(path)]


def _planes(path: Path) -> Iterator[tuple[str, memoryview]]:
    for number, plane in _fields(memoryview(path.read_bytes())):
        if number == 1:
            yield next((_text(v) for n, v in _fields(plane) if n == 2), ""), plane


def event_times(
    path: Path, plane_prefix: str = "/device:GPU", line_prefix: str = "Stream"
) -> dict[str, tuple[int, float]]:
    """What ran on a device.

    Args:
        path: an .xplane.pb file.
        plane_prefix, line_prefix: with what the names of planes and lines begin. A GPU's lines are
            its streams, and others that say the same again.

    Returns:
        For each kernel's name the number of its runs and the microseconds of all.
    """
    total: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for name, plane in _planes(path):
        if not name.startswith(plane_prefix):
            continue
        names, lines = {}, []
        for number, value in _fields(plane):
            if number == 3:
                lines.append(value)
            elif number == 4:
                entry = dict(_fields(value))
                names[entry.get(1, 0)] = next(
                    (_text(v) for n, v in _fields(entry[2]) if n == 2), ""
                )
        for line in lines:
            if not next((_text(v) for n, v in _fields(line) if n == 2), "").startswith(line_prefix):
                continue
            for number, event in _fields(line):
                if number == 4:
                    fields = dict(_fields(event))
                    count, time = total[names.get(fields.get(1, 0), "")]
                    total[names.get(fields.get(1, 0), "")] = (
                        count + 1,
                        time + fields.get(3, 0) / 1e6,
                    )
    return dict(total)
