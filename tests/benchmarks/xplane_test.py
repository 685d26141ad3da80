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


def event(kernel: int, picoseconds: int) -> bytes:
    statistic = field(1, 7) + varint(2 << 3 | 1) + bytes(8)  # a double
    return field(1, kernel) + field(2, 300) + field(3, picoseconds) + field(4, statistic)


def plane(name: str) -> bytes:
    stream = field(2, "Stream #16(Compute)") + field(3, 123456789)
    stream += field(4, event(1, 5_000_000)) + field(4, event(300, 7_000_000))
    stream += field(4, event(1, 500_000))
    same_again = field(2, "XLA Ops") + field(4, event(1, 9_000_000))
    names = b"".join(
        field(4, field(1, number) + field(2, field(1, number) + field(2, kernel)))
        for number, kernel in [(1, "PagedAttention"), (300, "Combine")]
    )
    return field(1, 1) + field(2, name) + field(3, stream) + field(3, same_again) + names


def test_event_times(tmp_path: Path) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(field(1, plane("/device:GPU:0")) + field(1, plane("/host:CPU")))
    assert xplane.plane_names(path) == ["/device:GPU:0", "/host:CPU"]
    assert xplane.event_times(path) == {"PagedAttention": (2, 5.5), "Combine": (1, 7.0)}
