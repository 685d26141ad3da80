"""Read and write Protocol Buffers, for the few fields of XLA's messages that are used here."""

from collections.abc import Iterable, Iterator


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the numbers and values of a message's fields.

    Yields:
        A field's number, and its value: an integer, or the bytes of a string, a message, or a
        fixed-size number.

    Raises:
        ValueError: a field has an obsolete or unknown wire type.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        wire_type = key & 7
        if wire_type == 0:
            value, at = _varint(message, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
            value, at = message[at : at + size], at + size
        elif wire_type == 2:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        else:
            raise ValueError(f"not a message: a field of wire type {wire_type}")
        yield key >> 3, value


def field(number: int, content: bytes) -> bytes:
    """Encode a field that is a string, bytes or a message."""
    return _as_varint(number << 3 | 2) + _as_varint(len(content)) + content


def number(field_number: int, value: int) -> bytes:
    """Encode a field of a non-negative integer, a bool or an enum."""
    return _as_varint(field_number << 3) + _as_varint(value)


def packed(field_number: int, values: Iterable[int]) -> bytes:
    """Encode a repeated field of non-negative integers."""
    return field(field_number, b"".join(map(_as_varint, values)))


def varints(data: memoryview) -> Iterator[int]:
    """Decode the integers of a packed field."""
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _as_varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
