"""Read numba.cuda's jitted functions for `cuda_kernel`."""

import inspect
import re
import struct
from collections.abc import Sequence

import numpy as np

from xla_kernels import launch as launches
from xla_kernels.cuda_source.cpp_types import Argument
from xla_kernels.cuda_source.library_kernels import LibraryKernel
from xla_kernels.cuda_source.python_code import PythonCode, Type
from xla_kernels.signature.dtypes import xla_name
from xla_kernels.signature.schema import ArrayType

# External functions that the driver provides.
_OF_THE_DRIVER = {"vprintf", "malloc", "free", "__assertfail"}


def read(dispatcher: object) -> LibraryKernel:
    """Read a kernel made with @cuda.jit for `cuda_kernel`.

    Raises:
        ValueError: the kernel has options that only Numba's own launches support.
    """
    name = dispatcher.py_func.__name__
    for option in ("device", "link", "extensions", "max_registers", "debug"):
        if dispatcher.targetoptions.get(option):
            raise ValueError(
                f"cuda_kernel {name!r}: it has {option}={dispatcher.targetoptions[option]!r} in "
                "@cuda.jit, which only Numba's own launch supports"
            )
    return LibraryKernel(name, _NumbaCode(dispatcher), {})


class _NumbaCode(PythonCode):
    def __init__(self, dispatcher: object) -> None:
        import numba

        names = inspect.signature(dispatcher.py_func).parameters
        super().__init__(f"Numba {numba.__version__}", names)
        self._dispatcher = dispatcher

    def types(self, arguments: Sequence[Argument]) -> Sequence[Type]:
        types = tuple(map(self._type, self.names, arguments))
        signatures = self._dispatcher.signatures
        if self._dispatcher._can_compile or not signatures:
            return types
        # Given signatures, @cuda.jit compiles for no other types.
        fitting = [each for each in signatures if _is_alike(each, types)]
        if len(fitting) != 1:
            raise TypeError(
                f"{self.library}: {len(fitting)} of the signatures of @cuda.jit, "
                f"{', '.join(map(str, signatures))}, take {types}"
            )
        return fitting[0]

    def _type(self, name: str, argument: Argument) -> Type:
        import numba

        if not isinstance(argument.value, ArrayType):
            if not isinstance(argument.value, (bool, int, float, complex, np.generic)):
                raise TypeError(
                    f"{self.library}: {name} is of type {type(argument.value).__name__}; a kernel "
                    "accepts XLA tensors and numbers"
                )
            return numba.typeof(argument.value)
        array = argument.value
        try:
            dtype = np.dtype(str(array.dtype).removeprefix("torch."))
        except TypeError:
            raise TypeError(
                f"{self.library} does not support {xla_name(array.dtype)}, the dtype of {name}"
            ) from None
        return numba.types.Array(numba.from_dtype(dtype), len(array.shape), "C")

    def compile(self, types: Sequence[Type], capability: int) -> tuple[bytes, str]:
        from numba import cuda

        options = {
            key: value
            for key, value in self._dispatcher.targetoptions.items()
            if key in inspect.signature(cuda.compile).parameters and key != "device"
        }
        text, _ = cuda.compile(
            self._dispatcher.py_func,
            tuple(types),
            device=False,
            abi="numba",
            cc=divmod(capability, 10),
            **options,
        )
        needed = set(re.findall(r"\.extern\s+\.func\s+(?:\([^)]*\)\s*)?([\w$]+)", text))
        if missing := needed - _OF_THE_DRIVER:
            raise NotImplementedError(
                f"{self.library}: the kernel calls {min(missing)}, which Numba links from another "
                "library when it launches"
            )
        return text.encode(), re.search(r"\.entry\s+([\w$]+)", text)[1]

    def words(self, type_: Type, argument: Argument) -> list[str]:
        if isinstance(argument.value, ArrayType):
            return _array_words(argument.value, argument.address)
        value = np.dtype(str(type_)).type(argument.value)
        if np.iscomplexobj(value):
            return [launches.value(part.tobytes()) for part in (value.real, value.imag)]
        return [launches.value(value.tobytes())]


def _is_alike(declared: Sequence[Type], given: Sequence[Type]) -> bool:
    """Return whether the given types fit the declared ones; numbers may be narrower."""
    import numba

    types = numba.types
    kinds = (types.Boolean, types.Integer, types.Float, types.Complex)

    def kind(type_: Type) -> int:
        return next((i for i, each in enumerate(kinds) if isinstance(type_, each)), -1)

    return len(declared) == len(given) and all(
        isinstance(d, types.Array) and (d.dtype, d.ndim) == (g.dtype, g.ndim) and d.layout in "CA"
        if isinstance(g, types.Array)
        else kind(d) >= kind(g)
        for d, g in zip(declared, given, strict=True)
    )


def _array_words(array: ArrayType, address: str) -> list[str]:
    """Return a Numba array's words: null owner and parent, sizes, address, shape, byte strides."""
    strides, step = [], array.dtype.itemsize
    for size in reversed(array.shape):
        strides.insert(0, step)
        step *= size

    def numbers(values: Sequence[int]) -> list[str]:
        return [launches.value(struct.pack("<q", value)) for value in values]

    return [
        launches.NULL,
        launches.NULL,
        *numbers([array.size, array.dtype.itemsize]),
        address,
        *numbers(array.shape),
        *numbers(strides),
    ]
