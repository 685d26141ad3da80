"""Read kernels of cuTile (cuda.tile) for `cuda_kernel`, exported as cubins."""

import importlib.metadata
import inspect
import io
import struct
from collections.abc import Sequence

import numpy as np
import torch

from xla_kernels import launch as launches
from xla_kernels.cuda_source.cpp_types import Argument
from xla_kernels.cuda_source.library_kernels import LibraryKernel
from xla_kernels.cuda_source.python_code import PythonCode, Type
from xla_kernels.signature.dtypes import xla_name
from xla_kernels.signature.schema import ArrayType

_ALIGNMENT = 16  # alignment of XLA's buffers in bytes, up to what cuTile's compiler uses
_FACTOR = 16  # divisor of sizes, likewise
# The compiler uses these properties for at most as many dimensions as a tensor map may have.
_MOST_DIMENSIONS = 5
_FORMATS = {"int32": "<i", "int64": "<q", "float32": "<f", "float64": "<d", "bool_": "<?"}


def read(kernel: object) -> LibraryKernel:
    """Read a kernel made with @ct.kernel for `cuda_kernel`."""
    function = kernel._annotated_function.pyfunc
    # The compiler chooses the number of threads; a launch passes 1.
    fixed = {"block": 1, "block_is_fixed": True}
    return LibraryKernel(function.__name__, _TileCode(kernel, function), fixed)


class _TileCode(PythonCode):
    def __init__(self, kernel: object, function: object) -> None:
        names = inspect.signature(function).parameters
        super().__init__(f"cuda-tile {importlib.metadata.version('cuda-tile')}", names)
        self._kernel = kernel
        self._name = function.__name__

    def types(self, arguments: Sequence[Argument]) -> Sequence[Type]:
        annotations = self._kernel._annotated_function.parameter_annotations
        return list(map(self._type, self.names, annotations, arguments))

    def _type(self, name: str, annotation: object, argument: Argument) -> Type:
        from cuda import tile
        from cuda.tile.compilation import ConstantConstraint, ScalarConstraint

        value = argument.value
        if isinstance(value, ArrayType):
            return self._array(name, annotation, value)
        value = value.item() if isinstance(value, np.generic) else value
        if getattr(annotation, "constant", False):
            return ConstantConstraint(value)
        if getattr(annotation, "scalar", None) is not None:
            return ScalarConstraint(annotation.scalar.dtype)
        for type_, dtype in ((bool, tile.bool_), (int, tile.int32), (float, tile.float32)):
            if isinstance(value, type_):
                return ScalarConstraint(dtype)
        raise TypeError(
            f"{self.library}: {name} is of type {type(value).__name__}; pass an XLA tensor, a "
            "number, or a constant for ct.Constant"
        )

    def _array(self, name: str, annotation: object, array: ArrayType) -> Type:
        """Return the type that cuTile assumes for an array that it allocates."""
        from cuda import tile
        from cuda.tile.compilation import ArrayConstraint

        dtype = getattr(tile, _dtype(array.dtype), None)
        if dtype is None:
            raise TypeError(
                f"{self.library} does not support {xla_name(array.dtype)}, the dtype of {name}"
            )
        strides = _strides(array.shape)
        known = len(strides) <= _MOST_DIMENSIONS
        per_alignment = _ALIGNMENT // array.dtype.itemsize
        declared = getattr(annotation, "array", None)
        return ArrayConstraint(
            dtype,
            len(strides),
            index_dtype=declared.index_dtype if declared is not None else tile.int32,
            stride_lower_bound_incl=0,
            alias_groups=(),
            may_alias_internally=False,
            stride_constant=[1 if known and stride == 1 else None for stride in strides],
            stride_divisible_by=[
                per_alignment if known and stride % per_alignment == 0 else 1 for stride in strides
            ],
            shape_divisible_by=[
                _FACTOR if known and size % _FACTOR == 0 else 1 for size in array.shape
            ],
            base_addr_divisible_by=_ALIGNMENT,
        )

    def key(self, types: Sequence[Type]) -> str:
        return self._signature(types).symbol

    def _signature(self, types: Sequence[Type]) -> object:
        from cuda.tile.compilation import CallingConvention, KernelSignature

        signature = KernelSignature(types, CallingConvention.cutile_python_v1())
        return signature.with_mangled_symbol(self._name)

    def compile(self, types: Sequence[Type], capability: int) -> tuple[bytes, str]:
        from cuda.tile.compilation import export_kernel

        signature, file = self._signature(types), io.BytesIO()
        export_kernel(
            self._kernel, [signature], file, gpu_code=f"sm_{capability}", output_format="cubin"
        )
        return file.getvalue(), signature.symbol

    def words(self, type_: Type, argument: Argument) -> list[str]:
        def packed(dtype: object, value: object) -> str:
            try:
                return launches.value(struct.pack(_FORMATS[dtype.name], value))
            except struct.error as error:
                raise TypeError(
                    f"{self.library}: {value!r} is not of type {dtype.name}: {error}"
                ) from None

        array = argument.value
        if isinstance(array, ArrayType):
            index = type_.index_dtype
            numbers = [*array.shape, *_strides(array.shape)]
            return [argument.address, *(packed(index, number) for number in numbers)]
        if not hasattr(type_, "dtype"):  # a constant, which is compiled in
            return []
        return [packed(type_.dtype, array)]


def _strides(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return strides


def _dtype(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return "bool_" if name == "bool" else name
