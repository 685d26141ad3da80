"""Reads device times from a profile, the XSpace that torch_xla.debug.profiler writes.

It parses the few messages of tsl's xplane.proto that it needs, without the protobuf library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch_xla_ext.tools.protobuf_wire_format import fields


def _text(value: int | memoryview) -> str:
    return bytes(value).decode(errors="replace")


def _name(message: memoryview) -> str:
    """Of a plane, a line or a kind of event."""
    return next((_text(value) for number, value in fields(message) if number == 2), "")


def plane_names(path: Path) -> list[str]:
    """The planes of a profile: a GPU's is "/device:GPU:0"."""
    return [name for name, _ in _planes(path)]


def _planes(path: Path) -> Iterator[tuple[str, memoryview]]:
    for number, plane in fields(memoryview(path.read_bytes())):
        if number == 1:
            yield _name(plane), plane


@dataclass(frozen=True)
class Event:
    """A run of a kernel, a copy or a memset; in picoseconds since the profile's beginning."""

    name: str
    begin: int
    end: int


def device_events(
    path: Path, plane_prefix: str = "/device:GPU", line_prefix: str = "Stream"
) -> list[Event]:
    """What ran on a device.

    Args:
        path: an .xplane.pb file.
        plane_prefix, line_prefix: with what the names of planes and lines begin. A GPU's lines are
            its streams, and others that say the same again.
    """
    events = []
    for plane_name, plane in _planes(path):
        if not plane_name.startswith(plane_prefix):
            continue
        names, lines = {}, []
        for number, value in fields(plane):
            if number == 3:
                lines.append(value)
            elif number == 4:
                entry = dict(fields(value))
                names[entry.get(1, 0)] = _name(entry[2])
        for line in lines:
            if not _name(line).startswith(line_prefix):
                continue
            origin = next((v for n, v in fields(line) if n == 3), 0) * 1000
            for event in (dict(fields(value)) for n, value in fields(line) if n == 4):
                begin = origin + event.get(2, 0)
                name = names.get(event.get(1, 0), "")
                events.append(Event(name, begin, begin + event.get(3, 0)))
    return events


def busy_microseconds(events: Iterable[Event]) -> float:
    """How long at least one event ran: a kernel may begin before the one ahead of it has ended."""
    busy = until = 0
    for event in sorted(events, key=lambda event: event.begin):
        busy += max(event.end - max(event.begin, until), 0)
        until = max(event.end, until)
    return busy / 1e6


def kernel_times(events: Iterable[Event]) -> dict[str, tuple[int, float]]:
    """For each name the number of its events and the microseconds of all of them."""
    total: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for event in events:
        count, time = total[event.name]
        total[event.name] = count + 1, time + (event.end - event.begin) / 1e6
    return dict(total)
