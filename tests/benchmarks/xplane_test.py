"""benchmarks/xplane.py reads what protobuf writes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path("benchmarks").resolve()))

import xplane


def varint(value: int) -> bytes:
    head = b""
    while value >= 0x80:
        head, value = head + bytes([value & 0x7F | 0x80]), value >> 7
    return head + bytes([value])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(kernel: int, begin: int, picoseconds: int) -> bytes:
    statistic = field(1, 7) + varint(2 << 3 | 1) + bytes(8)  # a double
    return field(1, kernel) + field(2, begin) + field(3, picoseconds) + field(4, statistic)


def plane(name: str) -> bytes:
    stream = field(2, "Stream #16(Compute)") + field(3, 123456789)
    stream += field(4, event(1, 300, 5_000_000)) + field(4, event(300, 4_000_300, 7_000_000))
    stream += field(4, event(1, 20_000_000, 500_000))
    same_again = field(2, "XLA Ops") + field(4, event(1, 0, 9_000_000))
    names = b"".join(
        field(4, field(1, number) + field(2, field(1, number) + field(2, kernel)))
        for number, kernel in [(1, "PagedAttention"), (300, "Combine")]
    )
    return field(1, 1) + field(2, name) + field(3, stream) + field(3, same_again) + names


def test_events_of_the_device(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(field(1, plane("/device:GPU:0")) + field(1, plane("/host:CPU")))
    assert xplane.plane_names(path) == ["/device:GPU:0", "/host:CPU"]
    events = xplane.device_events(path)
    origin = 123_456_789_000
    assert events[1] == xplane.Event("Combine", origin + 4_000_300, origin + 11_000_300)
    assert xplane.kernel_times(events) == {"PagedAttention": (2, 5.5), "Combine": (1, 7.0)}
    # The second begins 1 us before the first ends.
    assert xplane.busy_microseconds(events) == 5 + 6 + 0.5


def test_an_event_within_another() -> None:
    events = [xplane.Event("a", 0, 9_000_000), xplane.Event("b", 1_000_000, 2_000_000)]
    assert xplane.busy_microseconds(events) == 9
    assert xplane.busy_microseconds([]) == 0
