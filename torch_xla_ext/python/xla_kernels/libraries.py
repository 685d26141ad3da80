"""Load the shared libraries of kernels, and find functions in them."""

import ctypes
import difflib
import os
import shutil
import tempfile
import threading
from pathlib import Path

from xla_kernels import elf

# The libraries by path, with the inode, time and size of the file when it was loaded.
_loaded: dict[Path, tuple[tuple[int, int, int], ctypes.CDLL]] = {}
_lock = threading.Lock()
# In the mangled name of a function whose parameters have kernel.h's types.
_KERNEL_TYPES = "13torch_xla_ext"
_copies = tempfile.TemporaryDirectory(prefix="torch_xla_ext-")


def load(path: str | os.PathLike[str]) -> ctypes.CDLL:
    """Load a library; if its file has changed since it was first loaded, load a copy.

    For a known path, the dynamic loader would return the old library.
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(
            f"{file}: no such file; pass the path of the kernel's shared library"
        )
    if reason := elf.why_not_loadable(file):
        raise OSError(f"{file} is not a library for this process: {reason}")
    file = file.resolve()
    with _lock:
        state = file.stat()
        version = (state.st_ino, state.st_mtime_ns, state.st_size)
        if file in _loaded and _loaded[file][0] == version:
            return _loaded[file][1]
        origin = file
        if file in _loaded:
            origin = Path(tempfile.mkdtemp(dir=_copies.name), file.name)
            shutil.copyfile(file, origin)
        try:
            library = ctypes.CDLL(str(origin))
        except OSError as error:
            raise OSError(
                f"{file} cannot be loaded: {error}; link it with the libraries that it needs (a "
                "kernel that uses torch_xla_ext/kernel.h needs nothing from torch_xla)"
            ) from error
        _refuse_replaced_functions(file, library)
        _loaded[file] = version, library
        return library


def _refuse_replaced_functions(file: Path, library: ctypes.CDLL) -> None:
    """Raise OSError if functions of a library's kernels are those of another library.

    The dynamic loader looks for a function first in the libraries that were loaded with
    RTLD_GLOBAL. If one has a `Launch` with the same parameters, the kernel would call that.
    """
    everywhere = ctypes.CDLL(None)
    for name in exported(library, with_weak=False):
        is_kernels = name.startswith("_Z") and _KERNEL_TYPES in name
        other = function_of(everywhere, name) if is_kernels else None
        if other is not None and _address(other) != _address(function_of(library, name)):
            raise OSError(
                f"{file}: its C++ function {name} would be replaced by that of a library that was "
                "loaded with RTLD_GLOBAL: load that one without RTLD_GLOBAL, or declare the "
                "function static or in an unnamed namespace"
            )


def _address(function: ctypes._CFuncPtr) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


def _mode(address: int, size: int) -> str:
    """Return the permissions ("rw-p") of the mapping that contains `size` bytes, or ""."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode = line.split(maxsplit=2)[:2]
            begin, end = (int(part, 16) for part in span.split("-"))
            if begin <= address and address + size <= end:
                return mode
    return ""


def is_code(address: int) -> bool:
    return "x" in _mode(address, 1)


def is_data(address: int, size: int, writable: bool = False) -> bool:
    """Return whether `size` bytes at an address can be read, and written if `writable`.

    Executable pages count, too: the linker may put constants there.
    """
    mode = _mode(address, size)
    return "r" in mode and ("w" in mode or not writable)


def to_capsule(address: int) -> object:
    """Return a PyCapsule without a name."""
    arguments = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(("PyCapsule_New", ctypes.pythonapi))
    return new(address, None, None)


def capsule_address(capsule: object) -> int:
    """Return the address that a PyCapsule holds."""
    get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
    get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    name = get_name(("PyCapsule_GetName", ctypes.pythonapi))(capsule)
    return get_pointer(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, name)


def code_address(name: str, function: int, what: str) -> int:
    if not is_code(function):
        raise ValueError(
            f"custom-call target {name!r}: {what} is {function:#x}, which is not the address of "
            "code in this process; pass the address of a function"
        )
    return function


def function_of(library: ctypes.CDLL, symbol: str) -> ctypes._CFuncPtr | None:
    try:
        return library[symbol]  # names such as `_name` are attributes of ctypes
    except (AttributeError, ValueError):
        return None


def find(library: ctypes.CDLL, name: str, symbol: str) -> int:
    function = function_of(library, symbol)
    if function is None:
        raise AttributeError(
            f"custom-call target {name!r}: {library._name} has no symbol {symbol!r}"
            + alike(symbol, exported(library))
        )
    return code_address(name, _address(function), f"symbol {symbol!r} of {library._name}")


def exported(library: ctypes.CDLL, with_weak: bool = True) -> list[str]:
    try:
        return elf.exported_functions(Path(library._name), with_weak)
    except (OSError, TypeError, ValueError):
        return []  # the process itself, for example


def alike(symbol: str, names: list[str]) -> str:
    """Return the part of an error text that lists a library's functions with similar names."""
    similar = [n for n in names if symbol in n or (len(n) > 3 and n in symbol)]
    similar += [n for n in difflib.get_close_matches(symbol, names, n=5) if n not in similar]
    if similar:
        text = "; similar are " + ", ".join(similar[:5])
    elif names:
        text = "; it has " + ", ".join(names[:10]) + (", …" if names[10:] else "")
    else:
        text = "; it exports no function"
    if any(n.startswith("_Z") for n in [*similar[:5], *([] if similar else names[:10])]):
        text += ' (names that begin with _Z are C++ functions: declare them extern "C")'
    return text
