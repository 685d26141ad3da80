"""Check ELF shared libraries, to explain why one cannot be loaded."""

import mmap
import platform
import struct
from pathlib import Path

_PT_LOAD = 1
_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_SHT_DYNSYM = 11
_STT_GNU_IFUNC = 10
_STB_GLOBAL = 1


def why_not_loadable(path: Path) -> str | None:
    """Return why a file is not a 64-bit shared library for this machine; None if it is one."""
    with path.open("rb") as file:
        header = file.read(64)
    if header[:4] != b"\x7fELF" or len(header) < 20:
        return "it is not an ELF file"
    if header[4] != 2 or header[5] != 1:
        return "it is not a 64-bit little-endian ELF file"
    kind, number = struct.unpack_from("<HH", header, 16)
    machine = _MACHINES.get(number, f"machine {number}")
    if machine != platform.machine():
        return f"it is for {machine}, and this machine is {platform.machine()}"
    if kind != 3:
        return "it is not a shared library; link it with -shared"
    size, needed = path.stat().st_size, _needed_size(path, header)
    if size < needed:
        return (
            f"it is truncated: it has {size:,} bytes, but its headers describe {needed:,}; "
            "copy or link it again"
        )
    return None


def _needed_size(path: Path, header: bytes) -> int:
    """Return the least size that a file must have according to its headers.

    The dynamic loader maps what the headers describe, and reading a page beyond the file's end
    crashes the process (SIGBUS).
    """
    if len(header) < 64:
        return 64
    segments, sections = struct.unpack_from("<QQ", header, 32)
    segment_size, num_segments, section_size, num_sections = struct.unpack_from("<4H", header, 54)
    needed = max(segments + segment_size * num_segments, sections + section_size * num_sections)
    with path.open("rb") as file:
        file.seek(segments)
        table = file.read(segment_size * num_segments)
    for at in range(0, len(table) - 39, max(segment_size, 56)):
        kind, _, offset, _, _, file_size = struct.unpack_from("<IIQQQQ", table, at)
        if kind == _PT_LOAD:
            needed = max(needed, offset + file_size)
    return needed


def exported_functions(path: Path, with_weak: bool = True) -> list[str]:
    """Return the names of the functions that a 64-bit little-endian library defines, sorted.

    Args:
        with_weak: also inline functions and instances of templates.

    Raises:
        ValueError: the file is damaged.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return sorted(set(_dynamic_functions(data, with_weak)))
        except (struct.error, IndexError) as error:
            raise ValueError(f"{path}: damaged ELF file: {error}") from error


def _dynamic_functions(data: mmap.mmap, with_weak: bool) -> list[str]:
    (table,) = struct.unpack_from("<Q", data, 40)
    entry_size, count = struct.unpack_from("<HH", data, 58)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)
    ]
    names = []
    for _, kind, _, _, offset, size, link, _, _, symbol_size in sections:
        if kind != _SHT_DYNSYM:
            continue
        strings = sections[link][4]
        for at in range(offset, offset + size, symbol_size):
            name, info, _, section = struct.unpack_from("<IBBH", data, at)
            if not with_weak and info >> 4 != _STB_GLOBAL:
                continue
            if info & 15 in (2, _STT_GNU_IFUNC) and section != 0:
                begin = strings + name
                names.append(data[begin : data.find(b"\0", begin)].decode(errors="replace"))
    return names
