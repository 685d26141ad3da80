"""C++ types of a kernel's parameters: check which arguments they accept, and pack these.

The types are known from the mangled name that the compiler gives to a C++ function.
"""

import ctypes
import functools
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from xla_kernels import launch as launches
from xla_kernels.signature.dtypes import xla_name

# The struct formats of numbers. Device code has no long double.
_NUMBERS = {
    "bool": "<?",
    **{"char": "<b", "signed char": "<b", "unsigned char": "<B"},
    **{"short": "<h", "unsigned short": "<H", "int": "<i", "unsigned int": "<I"},
    **{"long": "<q", "unsigned long": "<Q", "long long": "<q", "unsigned long long": "<Q"},
    **{"float": "<f", "double": "<d", "__half": "<e", "__nv_bfloat16": "bf16"},
}
# The dtypes of arrays that a pointer to each type may refer to. Other types, such as void, char,
# float4 and classes, may refer to any.
_ELEMENTS = {
    "bool": torch.bool,
    "short": torch.int16,
    "unsigned short": torch.uint16,
    "int": torch.int32,
    "unsigned int": torch.uint32,
    **dict.fromkeys(("long", "long long"), torch.int64),
    **dict.fromkeys(("unsigned long", "unsigned long long"), torch.uint64),
    "float": torch.float32,
    "double": torch.float64,
    "__half": torch.float16,
    "__nv_bfloat16": torch.bfloat16,
    "__nv_fp8_e4m3": torch.float8_e4m3fn,
    "__nv_fp8_e5m2": torch.float8_e5m2,
    "__nv_fp8_e8m0": torch.float8_e8m0fnu,
    "__nv_fp4x2_e2m1": torch.float4_e2m1fn_x2,
}
# Types for which tensors of bytes are accepted, too (signature.dtypes.PASSED_AS_BYTES).
_BYTES = ("__nv_fp8_e8m0", "__nv_fp4x2_e2m1")
# Names of types in source text besides those that the compiler uses.
_SYNONYMS = {
    **{"int8_t": "signed char", "uint8_t": "unsigned char"},
    **{"int16_t": "short", "uint16_t": "unsigned short"},
    **{"int32_t": "int", "uint32_t": "unsigned int", "unsigned": "unsigned int"},
    **{"int64_t": "long long", "uint64_t": "unsigned long long", "size_t": "unsigned long"},
    **{"half": "__half", "nv_bfloat16": "__nv_bfloat16"},
}
# The C++ types of XLA's dtypes in a name expression.
CPP_NAMES = {
    **{"PRED": "bool", "S8": "signed char", "U8": "unsigned char"},
    **{"S16": "short", "U16": "unsigned short", "S32": "int", "U32": "unsigned int"},
    **{"S64": "int64_t", "U64": "uint64_t"},
    **{"F16": "__half", "BF16": "__nv_bfloat16", "F32": "float", "F64": "double"},
    **{"F8E4M3FN": "__nv_fp8_e4m3", "F8E5M2": "__nv_fp8_e5m2"},
    **{"F8E8M0FNU": "__nv_fp8_e8m0", "F4E2M1FNX2": "__nv_fp4x2_e2m1"},
    **dict.fromkeys(("F8E3M4", "S4X2", "U4X2"), "unsigned char"),
}


@dataclass(frozen=True)
class Argument:
    """A call's argument for a parameter.

    Attributes:
        value: an ArrayType, None for an absent array, a number, or the bytes of a struct.
        address: for an array, the word of a launch that stands for its address.
    """

    value: object
    address: str | None = None


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        type: the type in the compiler's spelling, "float const*".
        name: the parameter's name; None if it is unknown.
    """

    type: str
    name: str | None = None

    @property
    def is_pointer(self) -> bool:
        return self.type.endswith("*")

    @property
    def is_number(self) -> bool:
        return self.type in _NUMBERS

    @property
    def takes_arrays(self) -> bool:
        return self.is_pointer

    @property
    def takes_values(self) -> bool:
        """True if it accepts values other than arrays and None."""
        return not self.is_pointer

    @property
    def is_written(self) -> bool:
        """True if the type lets the kernel write through the parameter."""
        return self.is_pointer and not self.type.removesuffix("*").rstrip().endswith("const")

    @property
    def declares_writes(self) -> bool:
        """True if the declaration states that the kernel writes through the parameter."""
        return self.is_written

    @property
    def element(self) -> str:
        """The type that a pointer refers to, without const and volatile."""
        words = self.type.removesuffix("*").split()
        return " ".join(word for word in words if word not in ("const", "volatile"))

    def accepts(self, dtype: torch.dtype) -> bool:
        """Return whether the pointer may refer to an array of this dtype."""
        if dtype == torch.uint8 and self.element in _BYTES:
            return True
        return _ELEMENTS.get(self.element, dtype) == dtype

    def check_dtype(self, where: str, dtype: torch.dtype) -> None:
        """Raise TypeError unless the parameter is a pointer to arrays of this dtype."""
        if not self.is_pointer:
            raise TypeError(f"{where}: the kernel's parameter is {self.type}, but got a tensor")
        if not self.accepts(dtype):
            raise TypeError(
                f"{where}: the kernel's parameter is {self.type}, an array of "
                f"{xla_name(_ELEMENTS[self.element])}, but the array is {xla_name(dtype)}"
            )

    def words(self, where: str, argument: Argument, size: int | None) -> list[str]:
        """Return the words that a launch passes: an array's address, or a value's bytes.

        Raises:
            TypeError, ValueError: as for `packed`.
        """
        if argument.address is not None:
            return [argument.address]
        return [launches.value(self.packed(where, argument.value, size))]

    def packed(self, where: str, value: object, size: int | None = None) -> bytes:
        """Pack a value into its bytes in memory.

        Args:
            size: the parameter's size in bytes; None if it is unknown.

        Raises:
            TypeError, ValueError: the value's type does not match the parameter, or the value is
                out of range.
        """
        data = self._packed(where, value)
        if size is not None and len(data) != size:
            raise ValueError(
                f"{where}: the kernel's parameter {self.type} has {size} bytes, but the value has "
                f"{len(data)}"
            )
        return data

    def _packed(self, where: str, value: object) -> bytes:
        if self.is_pointer:
            if value is None:
                return bytes(8)
            raise TypeError(
                f"{where}: the kernel's parameter is {self.type}: expected an XLA tensor or None, "
                f"but got one of type {type(value).__name__}"
            )
        if (code := _NUMBERS.get(self.type)) is not None:
            return _packed_number(where, self.type, code, value)
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
        if isinstance(value, ctypes.Structure):
            return bytes(memoryview(value))
        if isinstance(value, (np.generic, np.ndarray)):
            return value.tobytes()
        raise TypeError(
            f"{where}: the kernel's parameter is {self.type}, which is passed as bytes, a "
            f"ctypes.Structure or numpy's record, but got one of type {type(value).__name__}"
        )


def label(parameters: Sequence[Parameter], index: int) -> str:
    """Return the label of a parameter, such as ``parameter 1 (x)``."""
    name = parameters[index].name
    return f"parameter {index} ({name})" if name is not None else f"parameter {index}"


def _packed_number(where: str, type_: str, code: str, value: object) -> bytes:
    item = value.item() if isinstance(value, np.generic) else value
    is_float = type_ in ("float", "double", "__half", "__nv_bfloat16")
    accepted = (int, float) if is_float else (bool,) if type_ == "bool" else (int,)
    if not isinstance(item, accepted) or (isinstance(item, bool) and type_ != "bool"):
        raise TypeError(f"{where}: expected {type_} but got {type(value).__name__}")
    try:
        if is_float:
            item = float(item)
        if code == "bf16":
            rounded = torch.tensor(item, dtype=torch.float64).to(torch.bfloat16)
            if math.isinf(rounded) and not math.isinf(item):
                raise OverflowError
            return rounded.view(torch.int16).numpy().tobytes()
        return struct.pack(code, item)
    except (struct.error, OverflowError):
        raise ValueError(f"{where}: {value!r} is out of the range of {type_}") from None


@functools.cache
def _demangle() -> ctypes._CFuncPtr:
    function = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 2, ctypes.POINTER(ctypes.c_int)]
    return function


def demangled(name: str) -> str | None:
    """Return ``f(float const*)`` for ``_Z1fPKf``; None for a name that is not mangled."""
    status = ctypes.c_int()
    text = _demangle()(name.encode(), None, None, ctypes.byref(status))
    if status.value or not name.startswith("_Z"):
        return None
    result = ctypes.string_at(text).decode()
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(text)
    return result


_OPENING, _CLOSING = "(<[{", ")>]}"


def split(text: str) -> list[str]:
    """Split text at commas outside of brackets."""
    parts, depth, begin = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    parts = [part.strip() for part in (*parts, text[begin:])]
    return [] if parts == [""] else parts


def types_of(mangled: str) -> tuple[str, ...] | None:
    """Return the types of a function's parameters from its mangled name, if it contains them."""
    text = demangled(mangled)
    if text is None or not text.endswith(")"):
        return None
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ")") - (text[i] == "(")
        if depth == 0:
            return tuple(_canonical(part) for part in split(text[i + 1 : -1]))
    return None


def function_types(text: str) -> tuple[str, ...]:
    """Return the types of a function's parameters in a demangled name: ``void (*)(float, int)``."""
    begin = text.index("(*)(") + len("(*)(")
    depth = 1
    for i in range(begin, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return tuple(_canonical(part) for part in split(text[begin:i]))
    raise ValueError(f"not a function's type: {text}")


def _canonical(type_: str) -> str:
    """Return a type in the compiler's spelling: without restrict, and const after its subject."""
    text = re.sub(r"\b(__restrict__|__restrict|restrict|struct|class|typename)\b", " ", type_)
    base, star, rest = text.partition("*")
    words = base.split()
    const = "const" in words
    words = [word for word in words if word not in ("const", "volatile", "std::")]
    name = " ".join(words).removeprefix("std::").removeprefix("::")
    name = {"long int": "long", "long long int": "long long"}.get(name, name)
    name = _SYNONYMS.get(name, name)
    if not star:
        return name
    pointers = "*" + rest.replace(" ", "")
    if pointers.endswith("const"):  # the pointer itself
        pointers = pointers.removesuffix("const")
    return f"{name}{' const' if const else ''}{pointers}"


_DECLARED = re.compile(r"(.*?[\s*&])(\w+)\s*", re.DOTALL)


def parse_prototype(text: str) -> tuple[Parameter, ...]:
    """Return the parameters of ``void axpy(float a, const float* x)``, with their names.

    Raises:
        ValueError: the text is not a declaration of a function.
    """
    body = _without_comments(text).strip().rstrip(";").strip()
    begin = body.find("(")
    if begin < 0 or not body.endswith(")"):
        raise ValueError(
            f"prototype {text!r} is not a function's declaration, as in "
            '"void axpy(float a, const float* x, float* y)"'
        )
    result = []
    for part in split(body[begin + 1 : -1]):
        match = _DECLARED.fullmatch(part)
        if match is None:
            raise ValueError(f"prototype {text!r}: parameter {part!r} has no name")
        declared = re.sub(r"\b__grid_constant__\b", " ", match[1])
        result.append(Parameter(_canonical(declared), match[2]))
    return tuple(result)


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)


def parameters_in(source: str, function: str) -> tuple[Parameter, ...] | None:
    """Return a kernel's parameters as declared in source text; None without a declaration.

    They provide names, and bind arguments without a compiler. The types for launches come from the
    compiler.
    """
    source = _without_comments(source)
    base = re.split(r"[<(]", function)[0].rsplit("::", 1)[-1].strip()
    found = None
    for match in re.finditer(rf"\b{re.escape(base)}\s*\(", source):
        before = source[: match.start()]
        declaration = before[max(before.rfind(c) for c in ";}") + 1 :]
        if "__global__" not in declaration:
            continue
        depth, begin = 1, match.end()
        for i in range(begin, len(source)):
            depth += (source[i] == "(") - (source[i] == ")")
            if depth == 0:
                break
        try:
            parameters = parse_prototype(f"void f({re.sub(r'=[^,]*', '', source[begin:i])})")
        except ValueError:
            return None
        if found not in (None, parameters) or len({p.name for p in parameters}) < len(parameters):
            return None  # overloads
        found = parameters
    return found
