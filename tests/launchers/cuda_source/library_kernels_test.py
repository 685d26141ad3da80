"""Kernels of CuPy, Numba and cuTile in cuda_kernel: the launch for a GPU."""

import io
import re
import sys
import types
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import torch_xla_ext
from cuda_source.sources import SCALE, SQUARE, attributes, f32, i32, i64, parameters
from torch_xla_ext import CudaKernel, cuda_kernel
from xla_kernels import launch as launches
from xla_kernels.cuda_source import cutile_kernels, library_kernels, numba_kernels
from xla_kernels.cuda_source.configuration import Configuration
from xla_kernels.cuda_source.cpp_types import Argument
from xla_kernels.cuda_source.python_code import PythonCode
from xla_kernels.signature.schema import ArrayType

on_a_gpu = pytest.mark.usefixtures("on_a_gpu")

PTX = """
.version 8.0
.target sm_90
.visible .entry scaled(
    .param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .f32 p4
) { ret; }
"""


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.randn(8, 4).to(device)


class RawKernel:
    """The documented attributes of a cupy.RawKernel."""

    def __init__(
        self,
        code: str | None,
        name: str,
        options: Sequence[str] = (),
        enable_cooperative_groups: bool = False,
        file_path: str | None = None,
    ) -> None:
        self.code, self.name, self.options = code, name, tuple(options)
        self.enable_cooperative_groups = enable_cooperative_groups
        self.file_path = file_path


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that stands for CuPy, of which RawKernel could be."""
    module = types.ModuleType("cupy")
    module.__file__ = None
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(RawKernel, "__module__", "cupy._core.raw")


@on_a_gpu
def test_a_kernel_of_cupy(x: Tensor) -> None:
    kernel = cuda_kernel(RawKernel(SQUARE, "square", ["-std=c++14", "--use_fast_math"]))
    (y,) = kernel[1, 32](x, 32, outputs=[x])
    assert parameters(y) == ["t0", "r0", i32(32)]
    assert attributes(y)["cooperative"] == "false"


@on_a_gpu
def test_a_kernel_of_a_cupy_module(x: Tensor) -> None:
    # RawModule.get_function passes the mangled name of a name expression.
    mangled = "_ZN3own5scaleIfLi3EEEvPKT_PS1_l"
    kernel = cuda_kernel(RawKernel(SCALE, mangled, enable_cooperative_groups=True))
    assert kernel.name == "own::scale<float, 3>"
    (y,) = kernel[1, 32](x, 32, outputs=[x])
    assert parameters(y) == ["t0", "r0", i64(32)]
    assert attributes(y)["cooperative"] == "true"


def test_a_kernel_of_a_cupy_file() -> None:
    with pytest.raises(ValueError, match=r"'square' is from k.cubin.*from_file\(path, name, prot"):
        cuda_kernel(RawKernel(None, "square", file_path="k.cubin"))


def test_other_objects_are_refused() -> None:
    with pytest.raises(TypeError, match=r"CuPy, Numba or cuTile, but is a int$"):
        cuda_kernel(3)
    with pytest.raises(TypeError, match="pass the name of the `__global__` function"):
        cuda_kernel(SQUARE)
    for more in ({"name": "square"}, {"options": ["-O3"]}, {"include_dirs": ["."]}):
        with pytest.raises(TypeError, match="name, options and include_dirs are for source text"):
            cuda_kernel(RawKernel(SQUARE, "square"), **more)


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [
        ("triton.runtime.jit", "JITFunction", "triton_call"),
        ("cutlass.base_dsl.jit_executor", "JitCompiledFunction", "tvm_ffi_call"),
        ("helion.runtime.kernel", "Kernel", r"kernel\("),
    ],
)
def test_kernels_that_are_called_otherwise(module: str, name: str, remedy: str) -> None:
    kernel = type(name, (), {"__module__": module})()
    with pytest.raises(TypeError, match=f"is a {name}; call it by .*{remedy}"):
        cuda_kernel(kernel)


class Lengths(PythonCode):
    """A library whose arrays are an address and a number of elements."""

    def __init__(self) -> None:
        super().__init__("Lengths 1.0", ["x", "out", "factor"])
        self.compiled: list[object] = []

    def types(self, arguments: Sequence[Argument]) -> list[object]:
        return [
            each.value.dtype if each.address is not None else type(each.value).__name__
            for each in arguments
        ]

    def compile(self, types: Sequence[object], capability: int) -> tuple[bytes, str]:
        self.compiled.append((*types, capability))
        return PTX.encode(), "scaled"

    def words(self, type_: object, argument: Argument) -> list[str]:
        if argument.address is not None:
            return [argument.address, i64(argument.value.size)]
        return [f32(argument.value) if type_ in ("float", "float32") else i64(argument.value)]


def python_kernel(code: Lengths, **options: str) -> CudaKernel:
    options = {"signature": None, "parameters": "", "arguments": None, **options}
    configuration = Configuration("scaled", grid=1, block=32)
    return CudaKernel("scaled", code, configuration=configuration, reference=None, **options)


@on_a_gpu
def test_compiled_for_the_types_of_the_arguments(x: Tensor) -> None:
    kernel = python_kernel(code := Lengths())
    for factor in (2.0, 3.0):
        (y,) = kernel[1, 32](x, factor, outputs={"out": x})
        assert parameters(y) == ["t0", i64(32), "r0", i64(32), f32(factor)]
    kernel[1, 32](x.half(), 2.0, outputs={"out": (x.shape, torch.int8)})
    assert code.compiled == [
        (torch.float32, torch.float32, "float", 90),
        (torch.float16, torch.int8, "float", 90),
    ]
    with pytest.raises(TypeError, match="more than one way to bind 1 outputs"):
        kernel[1, 32](x, 2.0, outputs=[x])
    with pytest.raises(
        TypeError, match="compile needs the source, but the kernel is a function of Lengt"
    ):
        kernel.compile("sm_90")


@on_a_gpu
def test_the_signature_gives_the_types_of_numbers(x: Tensor) -> None:
    kernel = python_kernel(
        code := Lengths(), signature="(x: F32[*s]) -> (out: F32[*s])", parameters="factor: f32"
    )
    torch_xla_ext.define_operator(
        "library_kernels::scaled(Tensor x, float factor) -> Tensor", target=kernel
    )
    y = torch.ops.library_kernels.scaled(x, 2.0)
    assert parameters(y) == ["t0", i64(32), "r0", i64(32), f32(2.0)]
    assert code.compiled == [(torch.float32, torch.float32, "float32", 90)]


@on_a_gpu
def test_no_warning_of_writes(x: Tensor, recwarn: pytest.WarningsRecorder) -> None:
    python_kernel(Lengths())[1, 32](x, 2.0, outputs={"out": x})
    assert not [each for each in recwarn if "pass aliases" in str(each.message)]


@on_a_gpu
def test_another_layout_than_the_modules(x: Tensor) -> None:
    """A newer version of a library may pass its arguments in another way, so it is refused."""
    with pytest.raises(RuntimeError, match=r"Lengths 1.0 has compiled .*\(8, 8, 8, 8, 4\) bytes, "):
        python_kernel(Lengths())[1, 32](x, 2, outputs={"out": x})


def test_arrays_of_numba() -> None:
    """The ABI of Numba's kernels, which tests/gpu checks with Numba itself."""
    words = numba_kernels._array_words(ArrayType((2, 3, 5), torch.float16), "t1")
    numbers = [0, 0, 30, 2], [2, 3, 5, 30, 10, 2]
    assert words == [*map(i64, numbers[0]), "t1", *map(i64, numbers[1])]


@pytest.mark.parametrize("option", ["device", "link", "extensions", "max_registers", "debug"])
def test_options_of_numba_that_are_refused(option: str) -> None:
    dispatcher = type("CUDADispatcher", (), {"__module__": "numba.cuda.dispatcher"})()
    dispatcher.py_func, dispatcher.targetoptions = test_arrays_of_numba, {option: ["x"]}
    with pytest.raises(ValueError, match=f"it has {option}=.* only Numba's own launch supports"):
        cuda_kernel(dispatcher)


# cuTile's own package is installed without its compiler, so the types of arguments are real.


def tile_kernel(**options: object) -> CudaKernel:
    import cuda.tile as ct

    @ct.kernel
    def transpose(x, out, factor, TILE: ct.Constant[int]):  # noqa: ANN001, ANN202, N803
        i, j = ct.bid(0), ct.bid(1)
        tile = ct.load(x, index=(i, j), shape=(TILE, TILE)) * factor
        ct.store(out, index=(j, i), tile=ct.transpose(tile))

    return cuda_kernel(transpose, **options)


def array(*shape: int, dtype: torch.dtype = torch.float32) -> Argument:
    return Argument(ArrayType(shape, dtype), "t0")


@pytest.mark.parametrize(
    ("arguments", "symbol"),
    [
        # As KernelSignature.from_kernel_args of cuda-tile 1.7.0 names them, with arrays in memory.
        ([array(1000), array(1024, 1024), Argument(2)], "A1f32_1t1_p16_A2f32_1v4l0_2t1_3i16_p16"),
        (
            [array(64, 32, dtype=torch.float16), array(0, 1024), Argument(2)],
            "A2f16_1v8l0_2t1_3i16_p16_A2f32_1v4l0_2t1_3i16_p16",
        ),
        ([array(1, 8), array(3, 7), Argument(2)], "A2f32_1v4l0_2t1_p16_A2f32_1l0_2t1_p16"),
        (
            [
                array(8, 1, dtype=torch.float64),
                array(2, 2, 2, 2, 2, 16, dtype=torch.float16),
                Argument(2),
            ],
            "A2f64_3t1_p16_A6f16_3fl0_p16",
        ),
        (
            [array(dtype=torch.int8), array(16, 16, dtype=torch.bool), Argument(2)],
            "A0i8_p16_A2b8_1v16l0_2t1_3i16_p16",
        ),
    ],
)
def test_cutiles_assumptions_about_arrays(arguments: list[Argument], symbol: str) -> None:
    code = tile_kernel().calls.code
    types = code.types([*arguments, Argument(8)])
    assert code.key(types) == f"transpose_Kt1_{symbol}_Si32_I8"


def test_numbers_and_constants_of_cutile() -> None:
    code = tile_kernel().calls.code
    types = code.types([array(2), array(2), Argument(2.5), Argument(16)])
    assert code.words(types[2], Argument(2.5)) == [f32(2.5)]
    assert code.words(types[3], Argument(16)) == []
    types = code.types([array(2), array(2), Argument(True), Argument(16)])
    assert code.words(types[2], Argument(True)) == [launches.value(b"\1")]
    with pytest.raises(TypeError, match="is not of type int32"):
        code.words(code.types([array(2), array(2), Argument(1), Argument(1)])[2], Argument(2**31))
    with pytest.raises(TypeError, match="factor is of type list; pass an XLA tensor"):
        code.types([array(2), array(2), Argument([1]), Argument(16)])
    with pytest.raises(TypeError, match="not support C64, the dtype of x"):
        code.types([array(2, dtype=torch.complex64), array(2), Argument(1), Argument(16)])


def test_cutile_translates_the_kernel_for_these_types() -> None:
    from cuda.tile.compilation import export_kernel

    code, file = tile_kernel().calls.code, io.BytesIO()
    types = code.types([array(64, 48), array(48, 64), Argument(2.0), Argument(16)])
    export_kernel(
        code._kernel,
        [code._signature(types)],
        file,
        gpu_code="sm_90",
        output_format="tileir_bytecode",
        bytecode_version="13.1",
    )
    assert code.key(types).encode() in file.getvalue()


@on_a_gpu
def test_a_kernel_of_cutile(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ".visible .entry {} (.param .u64 a, {}, .param .u64 b, {}, .param .f32 c) {{ ret; }}"

    def compile_(code: object, types: Sequence[object], capability: int) -> tuple[bytes, str]:
        numbers = ", ".join(f".param .u32 {{0}}{i}" for i in range(4))
        name = code.key(types)
        text = entry.format(name, numbers.format("d"), numbers.format("e"))
        return f".version 8.0\n.target sm_{capability}\n{text}".encode(), name

    monkeypatch.setattr(cutile_kernels._TileCode, "compile", compile_)
    (y,) = tile_kernel()[2, 3](x, 2.0, 16, outputs={"out": x.t()})
    sizes = [8, 4, 4, 1], [4, 8, 8, 1]  # shapes and strides
    words = ["t0", *map(i32, sizes[0]), "r0", *map(i32, sizes[1]), f32(2.0)]
    assert parameters(y) == words
    assert re.findall(r"\d+", attributes(y)["grid"])[1:] == ["2", "3", "1"]
    assert re.findall(r"\d+", attributes(y)["block"])[1:] == ["1", "1", "1"]
    with pytest.raises(TypeError, match="its compiler chooses the block"):
        tile_kernel(block=128)


def test_a_class_of_the_same_name_elsewhere() -> None:
    kernel = type("kernel", (), {"__module__": "cuda.tilers"})()
    assert library_kernels._found(kernel, library_kernels._READERS) is None
