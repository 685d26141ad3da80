"""Write zip files whose entries can be copied from another zip file without recompression.

Python's zipfile cannot do that, and compressing the upstream binary again would take most of a
minute in every build. The files use the plain subset of the format that wheels use: no zip64, no
data descriptors, and the same time for every entry, so that equal contents give equal files.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_CENTRAL_HEADER = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")

_VERSION_NEEDED = 20
_MADE_BY_UNIX = 3 << 8 | _VERSION_NEEDED
_UTF8_NAME = 0x800
_DATE_1980_01_01 = 1 << 5 | 1
_REGULAR_FILE = 0o100000
_MAX_SIZE = 0xFFFFFFFF
_MAX_ENTRIES = 0xFFFF


@dataclass(frozen=True)
class _Entry:
    name: bytes
    mode: int
    method: int
    crc: int
    compressed_size: int
    size: int
    offset: int


class RawZipWriter:
    """Writes a zip file entry by entry; a context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: list[_Entry] = []

    def __enter__(self) -> RawZipWriter:
        self._file: BinaryIO = open(self._path, "wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._file:
            if kind is None:
                self._write_directory()

    def add(self, name: str, content: bytes, *, executable: bool = False) -> None:
        """Compress `content` and add it."""
        # Level 9 takes seven times as long, and makes our library 2% smaller.
        deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        data = deflate.compress(content) + deflate.flush()
        method = zipfile.ZIP_DEFLATED
        if len(data) >= len(content):
            data, method = content, zipfile.ZIP_STORED
        crc = zlib.crc32(content)
        self._begin(name, executable, method, crc, len(data), len(content))
        self._file.write(data)

    def copy(self, name: str, source: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        """Add an entry of another zip file, as compressed there, under the name `name`."""
        executable = bool(info.external_attr >> 16 & 0o111)
        self._begin(
            name, executable, info.compress_type, info.CRC, info.compress_size, info.file_size
        )
        with open(source.filename, "rb") as file:
            file.seek(info.header_offset)
            header = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            name_length, extra_length = header[-2:]
            file.seek(name_length + extra_length, 1)
            left = info.compress_size
            while left:
                block = file.read(min(left, 1 << 20))
                if not block:
                    raise ValueError(f"{source.filename} is truncated within {info.filename}")
                self._file.write(block)
                left -= len(block)

    def _begin(
        self, name: str, executable: bool, method: int, crc: int, compressed_size: int, size: int
    ) -> None:
        entry = _Entry(
            name=name.encode(),
            mode=_REGULAR_FILE | (0o755 if executable else 0o644),
            method=method,
            crc=crc,
            compressed_size=compressed_size,
            size=size,
            offset=self._file.tell(),
        )
        if max(entry.offset, size, compressed_size) >= _MAX_SIZE:
            raise ValueError(f"{name}: a zip file of 4 GiB or more would need zip64")
        if len(self._entries) + 1 >= _MAX_ENTRIES:
            raise ValueError(f"{name}: a zip file of {_MAX_ENTRIES} entries would need zip64")
        self._entries.append(entry)
        self._file.write(
            _LOCAL_HEADER.pack(
                b"PK\3\4",
                *(_VERSION_NEEDED, _UTF8_NAME, method, 0, _DATE_1980_01_01),
                *(crc, compressed_size, size),
                *(len(entry.name), 0),
            )
            + entry.name
        )

    def _write_directory(self) -> None:
        start = self._file.tell()
        for entry in self._entries:
            self._file.write(
                _CENTRAL_HEADER.pack(
                    b"PK\1\2",
                    *(_MADE_BY_UNIX, _VERSION_NEEDED, _UTF8_NAME, entry.method),
                    *(0, _DATE_1980_01_01),
                    *(entry.crc, entry.compressed_size, entry.size),
                    *(len(entry.name), 0, 0, 0, 0),
                    *(entry.mode << 16, entry.offset),
                )
                + entry.name
            )
        size = self._file.tell() - start
        count = len(self._entries)
        self._file.write(_END.pack(b"PK\5\6", 0, 0, count, count, size, start, 0))
