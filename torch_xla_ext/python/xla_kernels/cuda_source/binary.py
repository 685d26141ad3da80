"""Read the architecture of a cubin or of PTX, and its kernels with their parameters."""

import math
import re
import struct
from dataclasses import dataclass, field

_EM_CUDA = 190
_SHT_SYMTAB = 2
_STT_FUNC = 2
_LOCAL = 0  # local symbols; kernels of templates are weak
# In .nv.info: the format of an attribute with a size, and the attributes with a block's dimensions
# (of __launch_bounds__) and with a parameter's layout.
_SIZED = 0x04
_MOST_THREADS = 0x05
_PARAMETER = 0x17
_FATBIN_MAGIC = 0xBA55ED50
_PTX_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}
# The most shared memory of a block, in bytes, by compute capability.
_SHARED = {
    **dict.fromkeys(("80", "87"), 163 << 10),
    **dict.fromkeys(("86", "89", "120", "121"), 99 << 10),
    **dict.fromkeys(("90", "100", "103"), 227 << 10),
}


@dataclass(frozen=True)
class Binary:
    """A module of machine code or PTX.

    Attributes:
        architecture: "sm_90" for a cubin, "compute_90" for PTX, "any" for a fatbin, in which the
            driver looks for the GPU's code.
        kernels: the parameters' sizes in bytes, by kernel; None if the module does not contain
            them.
        most_threads: the most threads of a block, by kernel with __launch_bounds__.
    """

    architecture: str
    kernels: dict[str, tuple[int, ...] | None]
    most_threads: dict[str, int] = field(default_factory=dict)

    @property
    def most_shared(self) -> int | None:
        """The most shared memory of a block, in bytes; None if it depends on the GPU.

        Only code for an exact architecture ("sm_90", "compute_90a") runs on no newer GPU.
        """
        kind, _, number = self.architecture.partition("_")
        return None if kind == "compute" and number.isdigit() else _SHARED.get(number.rstrip("af"))


def read(module: bytes) -> Binary:
    """Read a module.

    Raises:
        ValueError: the module is not a cubin, a fatbin or PTX.
    """
    if module[:4] == b"\x7fELF":
        try:
            return _read_cubin(module)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ValueError(f"the cubin is damaged: {error}") from None
    if len(module) >= 4 and struct.unpack_from("<I", module)[0] == _FATBIN_MAGIC:
        return Binary("any", {})
    target = re.search(rb"^\s*\.target\s+sm_(\d+[af]?)", module, re.MULTILINE)
    if target is None:
        raise ValueError("it is neither a cubin, a fatbin nor PTX")
    text = module.decode(errors="replace")
    return Binary(f"compute_{target[1].decode()}", _ptx_kernels(text), _ptx_most_threads(text))


def _ptx_most_threads(text: str) -> dict[str, int]:
    """Return the product of the numbers of .maxntid between a kernel's head and its body."""
    heads = re.findall(r"\.entry\s+([\w$]+)\s*(?:\([^)]*\))?([^{]*)\{", text)
    found = ((name, re.search(r"\.maxntid\s+([\d, ]+)", rest)) for name, rest in heads)
    return {name: math.prod(map(int, match[1].split(","))) for name, match in found if match}


def _ptx_kernels(text: str) -> dict[str, tuple[int, ...] | None]:
    kernels: dict[str, tuple[int, ...] | None] = {}
    for name, body in re.findall(r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?", text):
        sizes = []
        for part in body.split(","):
            if not part.strip():
                continue
            match = re.search(r"\.[busf](8|16|32|64)\s+[\w$]+\s*(?:\[(\d+)\])?\s*$", part)
            if match is None:
                kernels[name] = None
                break
            sizes.append(_PTX_SIZES[match[1]] * int(match[2] or 1))
        else:
            kernels[name] = tuple(sizes)
    return kernels


def _read_cubin(module: bytes) -> Binary:
    machine = struct.unpack_from("<H", module, 18)[0]
    if module[4] != 2 or machine != _EM_CUDA:
        raise ValueError(f"it is an ELF file for machine {machine}, not a cubin")
    (sections_at,) = struct.unpack_from("<Q", module, 40)
    (flags,) = struct.unpack_from("<I", module, 48)
    count, names_index = struct.unpack_from("<HH", module, 60)
    # Since CUDA 13 (ABI version 8), flags precede the architecture.
    capability = (flags >> 8) & 0xFF if module[8] >= 8 else flags & 0xFF
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", module, sections_at + 64 * i) for i in range(count)
    ]

    def content(index: int) -> bytes:
        return module[headers[index][4] : headers[index][4] + headers[index][5]]

    def text(table: bytes, at: int) -> str:
        return table[at : table.index(b"\0", at)].decode()

    names = content(names_index)
    sections = {text(names, header[0]): i for i, header in enumerate(headers)}
    kernels: dict[str, tuple[int, ...] | None] = {}
    most_threads: dict[str, int] = {}
    for i, header in enumerate(headers):
        if header[1] != _SHT_SYMTAB:
            continue
        symbols, strings = content(i), content(header[6])
        for name_at, info, *_ in struct.iter_unpack("<IBBHQQ", symbols):
            name = text(strings, name_at)
            is_kernel = f".nv.info.{name}" in sections and f".text.{name}" in sections
            if info & 0xF == _STT_FUNC and info >> 4 != _LOCAL and is_kernel:
                kernels[name], threads = _attributes(content(sections[f".nv.info.{name}"]))
                if threads is not None:
                    most_threads[name] = threads
    return Binary(f"sm_{capability}", kernels, most_threads)


def _attributes(info: bytes) -> tuple[tuple[int, ...] | None, int | None]:
    """Return the sizes of a kernel's parameters and the most threads, from its ELF attributes."""
    sizes, threads, at = {}, None, 0
    while at + 4 <= len(info):
        layout, kind, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if layout != _SIZED:
            continue
        if kind == _PARAMETER and value == 12:
            _, number, _, bits = struct.unpack_from("<IHHI", info, at)
            sizes[number] = bits >> 18
        elif kind == _MOST_THREADS and value == 12:
            threads = math.prod(struct.unpack_from("<3I", info, at))
        at += value
    if sorted(sizes) != list(range(len(sizes))):
        return None, threads
    return tuple(sizes[number] for number in range(len(sizes))), threads
