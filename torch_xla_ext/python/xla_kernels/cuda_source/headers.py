"""Provide built-in headers, and identify the header files that a source includes."""

import functools
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

# The header that every source includes first, as under nvcc. Its 64-bit types are long long, as in
# NVIDIA's own standard library (CCCL), so that a source can include that library, too.
FIRST = "torch_xla_ext/integers.h"
_INTEGERS = """
#pragma once
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef int64_t intptr_t;
typedef uint64_t uintptr_t;
namespace std {
using ::int8_t; using ::uint8_t; using ::int16_t; using ::uint16_t;
using ::int32_t; using ::uint32_t; using ::int64_t; using ::uint64_t;
using ::intptr_t; using ::uintptr_t;
using size_t = decltype(sizeof(0)); using ptrdiff_t = long;
}
"""
# The parts of standard headers that device code uses; NVRTC has no standard headers.
_INTEGER_LIMITS = """
#pragma once
#define INT8_MIN (-128)
#define INT8_MAX 127
#define UINT8_MAX 255
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define UINT16_MAX 65535
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295U
#define INT64_MIN (-9223372036854775807LL - 1)
#define INT64_MAX 9223372036854775807LL
#define UINT64_MAX 18446744073709551615ULL
"""
_LIMITS = """
#pragma once
#define CHAR_BIT 8
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295U
#define LONG_MIN (-9223372036854775807L - 1)
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MIN (-9223372036854775807LL - 1)
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
"""
_FLOATS = """
#pragma once
#define FLT_MIN 1.175494351e-38F
#define FLT_MAX 3.402823466e+38F
#define FLT_EPSILON 1.192092896e-7F
#define DBL_MIN 2.2250738585072014e-308
#define DBL_MAX 1.7976931348623157e+308
#define DBL_EPSILON 2.2204460492503131e-16
"""
_EMPTY = "#pragma once\n"  # their declarations are built into the compiler
_MATH = """
#pragma once
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
"""
_BUILT_IN = {
    FIRST: _INTEGERS,
    **dict.fromkeys(("cstdint", "stdint.h"), _INTEGER_LIMITS),
    **dict.fromkeys(("climits", "limits.h"), _LIMITS),
    **dict.fromkeys(("cfloat", "float.h"), _FLOATS),
    **dict.fromkeys(("cstddef", "stddef.h"), _EMPTY),
    **dict.fromkeys(("cmath", "math.h"), _MATH),
    **dict.fromkeys(("cassert", "assert.h", "cstdio", "stdio.h"), _EMPTY),
}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>|(.*))', re.M)


def built_in(folders: Sequence[Path]) -> dict[str, str]:
    """Return the built-in headers by name, except those that an include folder has."""
    return {
        name: text
        for name, text in _BUILT_IN.items()
        if not any((folder / name).is_file() for folder in folders)
    }


def identity(source: str, folder: Path | None, folders: Sequence[Path]) -> list[list[str]] | None:
    """Return the files that a source may include, directly or indirectly, with their digests.

    All includes are followed, even inside conditions, so that no content that the compiler reads is
    left out.

    Args:
        folder: the source's folder.
        folders: the include folders, in order.

    Returns:
        Pairs of a path and a digest; None if the files are unknown, because a name is computed or
        include_next is used.
    """
    contents: dict[str, str] = {}
    to_read = [(source, folder)]
    while to_read:
        text, own = to_read.pop()
        for quoted, angled, computed in _INCLUDE.findall(text):
            if computed.strip():  # a macro, or `include_next`
                return None
            around = [own] if quoted and own is not None else []
            for place in (*around, *folders):
                path = os.path.normpath(place / (quoted or angled))
                if path in contents:
                    break
                if (content := _read(path)) is not None:
                    contents[path] = hashlib.sha256(content.encode()).hexdigest()
                    to_read.append((content, Path(path).parent))
                    break
    return sorted([path, digest] for path, digest in contents.items())


def _read(path: str) -> str | None:
    try:
        return _content(*file_identity(path))
    except OSError:
        return None


@functools.lru_cache(maxsize=4096)
def _content(path: str, time: int, size: int) -> str:
    return Path(path).read_text(errors="replace")


def file_identity(path: str | os.PathLike[str]) -> list[object]:
    """Identify a file that changes only when it is installed again."""
    path = Path(path).resolve()
    status = path.stat()
    return [str(path), status.st_mtime_ns, status.st_size]


def folder_identity(folder: Path) -> list[object]:
    """Identify a folder of CUDA headers by a header that every version contains."""
    for name in ("cuda.h", "cuda/version"):
        if (folder / name).is_file():
            return file_identity(folder / name)
    return [os.path.realpath(folder)]
