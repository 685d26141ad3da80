"""Check csrc/interpose/abi, as compiled into the front library, against upstream's binary.

    check_abi.py FRONT UPSTREAM LAYOUT MACHINE_CODE STAMP

The upstream binary's headers are not published, so the declarations in abi/ are compared with the
binary.

- The upstream binary calls every function that FRONT replaces through a relocation; otherwise
  FRONT's would never be called.
- Every function of torch_xla or XLA that FRONT looks up by its name exists.
- The virtual functions of XlaNode have the order that FRONT was compiled for.
- MACHINE_CODE has lines for the other declarations of abi/; a name in them is a symbol of UPSTREAM.
  `NAME 48 8b kConstant:8`: the function has these bytes in its code. A constant of LAYOUT
  (layout.h) stands for its four bytes, or with `:8` for its one byte. `NAME base OTHER`: the class
  with the typeinfo NAME begins with its only base class, whose typeinfo is OTHER. `NAME slot
  kConstant METHOD`: the vtable NAME has a method of this name, or symbol, at this place. `NAME size
  4`: the variable has this size.
"""

import functools
import gc
import mmap
import re
import struct
import sys
from pathlib import Path
from typing import NamedTuple

# FRONT's own exports, which the upstream binary does not call.
OWN = {
    "PyInit__XLAC",
    "GetPjrtApi",
    # BuildGpuCustomCall with a target, for C++ callers (patches/*/0001).
    "_ZN9torch_xla18BuildGpuCustomCallERKSt6vectorIN3xla5XlaOpESaIS2_EERKNS1_5ShapeERKNSt7__cxx1112"
    "basic_stringIcSt11char_traitsIcESaIcEEESH_",
}
# The class that FRONT derives from, and FRONT's derived class.
BASE_VTABLE = "_ZTVN9torch_xla7XlaNodeE"
DERIVED_VTABLE = "_ZTVN13torch_xla_ext14CustomCallNodeE"

# Prefixes of mangled names of torch_xla and XLA, which FRONT contains as text.
LOOKED_UP = rb"(?<!\w)(_ZNK?(?:9torch_xla|3xla|3tsl|5torch4lazy)\d\w+)(?=\0)"

_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_DYNSYM = 1, 2, 4, 11
_SHF_EXECINSTR = 4
_SI_CLASS = "_ZTVN10__cxxabiv120__si_class_type_infoE"
_R_X86_64_RELATIVE = 8


class Symbol(NamedTuple):
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
            raise ValueError(f"{path} is not a 64-bit ELF file")
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

    @functools.cached_property
    def dynamic_symbols(self) -> list[Symbol]:
        return self.symbols(_SHT_DYNSYM)

    def symbols(self, kind: int) -> list[Symbol]:
        """Return the symbols of a symbol table, in its order."""
        result = []
        for section in self._sections:
            if section[1] != kind:
                continue
            names, table = (
                self._data[offset : offset + length]
                for _, _, _, _, offset, length, *_ in (self._sections[section[6]], section)
            )
            for name, info, other, index, address, size in struct.iter_unpack("<IBBHQQ", table):
                text = names[name : names.find(b"\0", name)].decode()
                exported = index != 0 and info >> 4 != 0 and other & 3 == 0
                result.append(Symbol(text, address, size, index != 0, exported))
        return result

    def looked_up(self) -> set[str]:
        """Return those names in LOOKED_UP that are constants in the library's code."""
        return {
            name.decode()
            for section in self._sections
            if section[1] == _SHT_PROGBITS and not section[2] & _SHF_EXECINSTR
            for name in re.findall(LOOKED_UP, self._data[section[4] : section[4] + section[5]])
        }

    @functools.cached_property
    def relocations(self) -> dict[int, tuple[int, int, int]]:
        """Relocations by address: type, index into the dynamic symbol table, and addend."""
        result = {}
        for section in self._sections:
            if section[1] == _SHT_RELA:
                table = self._data[section[4] : section[4] + section[5]]
                for address, info, addend in struct.iter_unpack("<QQq", table):
                    result[address] = info & 0xFFFFFFFF, info >> 32, addend
        return result

    def content(self, address: int, size: int) -> bytes:
        for kind, _, offset, begin, _, file_size, _, _ in self._segments:
            if kind == 1 and begin <= address < begin + file_size:
                begin_in_file = offset + address - begin
                return self._data[begin_in_file : begin_in_file + size]
        raise ValueError(f"{self.path}: no segment has the address {address:#x}")


def method(mangled: str) -> str:
    """Return the method of a mangled name: Clone for `_ZNK9torch_xla7XlaNode5CloneE…`."""
    if match := re.match(r"_ZNK?(.*)", mangled):
        rest, last = match[1], ""
        while match := re.match(r"(\d+)(.*)", rest):
            length = int(match[1])
            last, rest = match[2][:length], match[2][length:]
        # D0, D1 and D2 are destructors.
        return rest[:2] if re.match(r"D\d", rest) else last
    return mangled


def virtual_functions(library: Library, vtable: str) -> list[str]:
    """Return the methods in the slots of a vtable."""
    dynamic = library.dynamic_symbols
    all_symbols = dynamic + library.symbols(_SHT_SYMTAB)
    tables = [s for s in all_symbols if s.name == vtable and s.defined]
    if not tables:
        raise ValueError(f"there is no {vtable}")
    begin, end = tables[0].address, tables[0].address + tables[0].size
    functions = {s.address: s.name for s in all_symbols if s.defined and s.name.startswith("_ZN")}
    result = []
    for address in range(begin + 16, end, 8):
        if address in library.relocations:
            kind, index, addend = library.relocations[address]
            relative = kind == _R_X86_64_RELATIVE
            result.append(functions.get(addend, "?") if relative else dynamic[index].name)
    return [method(name) for name in result]


def base_class(library: Library, dynamic: list[Symbol], typeinfo: Symbol) -> str:
    """Return the typeinfo of a class's only base, with which its objects begin."""
    # The typeinfo's own class, the name of the class, its base.
    own, _, base = (
        dynamic[library.relocations.get(typeinfo.address + offset, (0, 0, 0))[1]].name
        for offset in (0, 8, 16)
    )
    return base if own == _SI_CLASS else "no single base"


def check_line(
    line: str, constants: dict[str, int], upstream: Library, dynamic: list[Symbol]
) -> str | None:
    """Check a line of MACHINE_CODE; return the problem, or None."""
    name, what = line.split(maxsplit=1)
    symbol = next((s for s in dynamic if s.name == name and s.defined), None)
    if symbol is None:
        return f"the upstream binary has no {name}"
    kind, _, expected = what.partition(" ")
    if kind == "size":
        is_so = symbol.size == int(expected)
        return None if is_so else f"{name} has {symbol.size} bytes, but abi/ has {expected}"
    if kind == "slot":
        slot, _, method_name = expected.partition(" ")
        _, index, _ = upstream.relocations[symbol.address + 16 + 8 * constants[slot]]
        symbol_name = dynamic[index].name
        # For a template, the whole symbol.
        found = symbol_name if method_name.startswith("_Z") else method(symbol_name)
        return None if found == method_name else f"{name}: {found} in the place of {method_name}"
    if kind == "base":
        base = base_class(upstream, dynamic, symbol)
        return None if base == expected else f"{name}: base {base}, but abi/ has {expected}"
    code = bytes.fromhex(
        re.sub(
            r"(k\w+)(:8)?",
            lambda m: constants[m[1]].to_bytes(1 if m[2] else 4, "little").hex(),
            what,
        )
    )
    if code in upstream.content(symbol.address, symbol.size):
        return None
    return f"{name} has no {what} ({code.hex(' ')}) in its code"


def check(front: Library, upstream: Library, layout: str, machine_code: str) -> list[str]:
    """Return the problems."""
    problems = []
    symbols = upstream.dynamic_symbols
    called = {symbols[i].name for _, i, _ in upstream.relocations.values() if i}
    problems += [
        f"the front library exports {s.name}, which the upstream binary calls through no relocation"
        for s in front.dynamic_symbols
        if s.exported and s.name not in called | OWN
    ]
    # Functions that the upstream binary calls are defined in it or in torch.
    known = called | {s.name for s in symbols if s.defined}
    problems += [
        f"the front library looks {name} up, which the upstream binary does not have"
        for name in sorted(front.looked_up() - known)
    ]

    ours, base = (
        virtual_functions(front, DERIVED_VTABLE),
        virtual_functions(upstream, BASE_VTABLE),
    )
    if ours != base:
        problems.append(f"XlaNode's virtual functions are {base}, but abi/ has {ours}")

    constants = {
        name: int(value) for name, value in re.findall(r"size_t (k\w+) =\s*(\d+);", layout)
    }
    lines = [line for line in machine_code.splitlines() if line.strip() and line[0] != "#"]
    problems += filter(None, (check_line(line, constants, upstream, symbols) for line in lines))
    return problems


def main() -> None:
    front, upstream, layout, machine_code, stamp = map(Path, sys.argv[1:])
    # Cached, because there are a million symbols.
    gc.disable()
    problems = check(
        Library(front), Library(upstream), layout.read_text(), machine_code.read_text()
    )
    if problems:
        sys.exit("csrc/interpose/abi does not match the upstream binary:\n" + "\n".join(problems))
    stamp.write_text("checked\n")


if __name__ == "__main__":
    main()
