"""Checks csrc/front/abi, as the front library was compiled with it, against the stock binary.

    check_abi.py FRONT STOCK LAYOUT MACHINE_CODE STAMP

The stock binary's headers are not published: what abi/ declares is compared with the binary.

- Every function that FRONT exports, to be called in the place of the stock binary's, is called
  there through a relocation: else no call would arrive.
- The virtual functions of XlaNode have the order that FRONT was compiled for.
- MACHINE_CODE names a function for a size or an offset in LAYOUT (layout.h), which shows it.
"""

from __future__ import annotations

import dataclasses
import mmap
import re
import struct
import sys
from pathlib import Path

# What FRONT exports of its own: the stock binary does not call it.
OWN = {
    "PyInit__XLAC",
    "GetPjrtApi",
    # BuildGpuCustomCall with a target, for C++ callers (patches/*/0001).
    "_ZN9torch_xla18BuildGpuCustomCallERKSt6vectorIN3xla5XlaOpESaIS2_EERKNS1_5ShapeERKNSt7__cxx1112"
    "basic_stringIcSt11char_traitsIcESaIcEEESH_",
}
# The class that FRONT derives from, and its own that does.
BASE_VTABLE = "_ZTVN9torch_xla7XlaNodeE"
DERIVED_VTABLE = "_ZTVN13torch_xla_ext14CustomCallNodeE"

_SHT_SYMTAB, _SHT_RELA, _SHT_DYNSYM = 2, 4, 11
_R_X86_64_RELATIVE = 8


@dataclasses.dataclass(frozen=True)
class Symbol:
    name: str
    address: int
    size: int
    defined: bool
    exported: bool


class Library:
    """A shared library of x86-64 Linux."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{path} is no 64-bit ELF file")
        (offset,) = struct.unpack_from("<Q", self._data, 0x28)
        entry_size, count = struct.unpack_from("<HH", self._data, 0x3A)
        self._sections = [
            struct.unpack_from("<IIQQQQIIQQ", self._data, offset + i * entry_size)
            for i in range(count)
        ]
        (offset,) = struct.unpack_from("<Q", self._data, 0x20)
        entry_size, count = struct.unpack_from("<HH", self._data, 0x36)
        self._segments = [
            struct.unpack_from("<IIQQQQQQ", self._data, offset + i * entry_size)
            for i in range(count)
        ]

    def symbols(self, kind: int = _SHT_DYNSYM) -> list[Symbol]:
        """Those of the dynamic symbol table, or of another, in its order."""
        result = []
        for section in self._sections:
            if section[1] != kind:
                continue
            names = self._sections[section[6]][4]
            table = self._data[section[4] : section[4] + section[5]]
            for name, info, other, index, address, size in struct.iter_unpack("<IBBHQQ", table):
                end = self._data.find(b"\0", names + name)
                text = self._data[names + name : end].decode()
                exported = index != 0 and info >> 4 != 0 and other & 3 == 0
                result.append(Symbol(text, address, size, index != 0, exported))
        return result

    def relocations(self) -> list[tuple[int, int, int, int]]:
        """Address, type, index into the dynamic symbol table, and addend of each."""
        result = []
        for section in self._sections:
            if section[1] == _SHT_RELA:
                table = self._data[section[4] : section[4] + section[5]]
                for address, info, addend in struct.iter_unpack("<QQq", table):
                    result.append((address, info & 0xFFFFFFFF, info >> 32, addend))
        return result

    def content(self, address: int, size: int) -> bytes:
        for kind, _, offset, begin, _, file_size, _, _ in self._segments:
            if kind == 1 and begin <= address < begin + file_size:
                begin_in_file = offset + address - begin
                return self._data[begin_in_file : begin_in_file + size]
        raise ValueError(f"no segment has the address {address:#x}")


def method(mangled: str) -> str:
    """The last name of a mangled one: of `_ZNK9torch_xla7XlaNode5CloneE…`, Clone."""
    if match := re.match(r"_ZNK?(.*)", mangled):
        rest, last = match[1], ""
        while match := re.match(r"(\d+)(.*)", rest):
            length = int(match[1])
            last, rest = match[2][:length], match[2][length:]
        # D0, D1 and D2 are destructors.
        return rest[:2] if re.match(r"D\d", rest) else last
    return mangled


def virtual_functions(library: Library, vtable: str) -> list[str]:
    """The methods in the slots of a vtable."""
    dynamic = library.symbols()
    all_symbols = dynamic + library.symbols(_SHT_SYMTAB)
    tables = [s for s in all_symbols if s.name == vtable and s.defined]
    if not tables:
        raise ValueError(f"there is no {vtable}")
    begin, end = tables[0].address, tables[0].address + tables[0].size
    functions = {s.address: s.name for s in all_symbols if s.defined and s.name.startswith("_ZN")}
    slots = {
        address: functions.get(addend, "?") if kind == _R_X86_64_RELATIVE else dynamic[index].name
        for address, kind, index, addend in library.relocations()
        if begin + 16 <= address < end
    }
    return [method(slots[address]) for address in sorted(slots)]


def check(front: Library, stock: Library, layout: str, machine_code: str) -> list[str]:
    """Returns what is wrong."""
    problems = []
    symbols = stock.symbols()
    called = {symbols[i].name for _, _, i, _ in stock.relocations() if i}
    problems += [
        f"the front library exports {s.name}, which the stock binary calls through no relocation"
        for s in front.symbols()
        if s.exported and s.name not in called | OWN
    ]

    ours, base = (
        virtual_functions(front, DERIVED_VTABLE),
        virtual_functions(stock, BASE_VTABLE),
    )
    if ours != base:
        problems.append(f"XlaNode's virtual functions are {base}, but abi/ has {ours}")

    constants = {
        name: int(value) for name, value in re.findall(r"size_t (k\w+) =\s*(\d+);", layout)
    }
    by_name = {s.name: s for s in symbols if s.defined}
    for line in machine_code.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, code = line.split(maxsplit=1)
        if name not in by_name:
            problems.append(f"the stock binary has no {name}")
            continue
        symbol = by_name[name]
        expected = bytes.fromhex(
            re.sub(
                r"(k\w+)(:8)?",
                lambda m: constants[m[1]].to_bytes(1 if m[2] else 4, "little").hex(),
                code,
            )
        )
        if expected not in stock.content(symbol.address, symbol.size):
            problems.append(f"{name} has no {code} ({expected.hex(' ')}) in its code")
    return problems


def main() -> None:
    front, stock, layout, machine_code, stamp = map(Path, sys.argv[1:])
    problems = check(Library(front), Library(stock), layout.read_text(), machine_code.read_text())
    if problems:
        sys.exit("csrc/front/abi is not that of the stock binary:\n" + "\n".join(problems))
    stamp.write_text("checked\n")


if __name__ == "__main__":
    main()
