"""Compiling with NVRTC: results, the cache, headers, and error texts. No GPU is needed."""

import os
import re
import struct
from pathlib import Path

import pytest

import torch_xla_ext
from cuda_source.sources import ADD_TO, SCALE, SQUARE
from xla_kernels.cuda_source import binary, cache, compiler, nvrtc
from xla_kernels.cuda_source.compiler import Instance, Source
from xla_kernels.cuda_source.nvrtc import CompilationError
from xla_kernels.plugin import discovery


def compiled(text: str, name: str, architecture: str = "sm_90a", **fields: object) -> Instance:
    source = {"file": None, "options": (), "include_dirs": ()} | fields
    return compiler.compile_instance(Source(text, name=name, **source), architecture)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list of the architectures for which NVRTC is called."""
    calls = []
    upstream = nvrtc.Nvrtc.compile

    def compile_and_note(self: nvrtc.Nvrtc, *args: object) -> nvrtc.Compiled:
        calls.append(next(option for option in args[2] if option.startswith("-arch=")))
        return upstream(self, *args)

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", compile_and_note)
    return calls


def test_a_cubin() -> None:
    instance = compiled(SQUARE, "square")
    assert instance.kernel == "_Z6squarePKfPfi"
    assert instance.types == ("float const*", "float*", "int")
    assert instance.module.startswith(b"\x7fELF")
    read = binary.read(instance.module)
    assert read == binary.Binary("sm_90", {"_Z6squarePKfPfi": (8, 8, 4)})
    (machine,) = struct.unpack_from("<H", instance.module, 18)
    assert machine == 190  # EM_CUDA


def test_ptx() -> None:
    instance = compiled(SQUARE, "square", "compute_80")
    assert b".target sm_80" in instance.module
    assert binary.read(instance.module).kernels == {"_Z6squarePKfPfi": (8, 8, 4)}


def test_templates_by_name_expressions() -> None:
    instance = compiled(SCALE, "own::scale<__half, 3>")
    assert instance.types == ("__half const*", "__half*", "long long")
    assert compiled(SCALE, "own::scale<float, 3>").types[0] == "float const*"


def test_extern_c_has_its_types_from_the_compiler() -> None:
    instance = compiled(ADD_TO, "add_to")
    assert instance.kernel == "add_to"
    assert instance.types == ("float*", "float const*", "float", "Range", "unsigned char")
    assert binary.read(instance.module).kernels == {"add_to": (8, 8, 4, 8, 1)}


def test_options() -> None:
    text = "__global__ void __launch_bounds__(WIDTH) f(float* x) {}"
    with pytest.raises(CompilationError, match='identifier "WIDTH" is undefined'):
        compiled(text, "f")
    assert compiled(text, "f", options=("-DWIDTH=4",)).types == ("float*",)


def test_standard_headers() -> None:
    text = """
        #include <cassert>
        #include <cmath>
        #include <cstdint>
        #include <cstdio>
        #include <cuda_runtime.h>
        #include <stdint.h>
        __global__ void f(std::int64_t* x, uint8_t y, size_t n) {
          assert(n < UINT32_MAX);
          if (y == UINT8_MAX) printf("%f", INFINITY);
          x[0] = INT64_MIN;
        }"""
    assert compiled(text, "f").types == ("long long*", "unsigned char", "unsigned long")


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("half", "cuda_fp16.h"),
        ("__nv_bfloat16", "cuda_bf16.h"),
        ("__nv_fp8_e8m0", "cuda_fp8.h"),
        ("__nv_fp4x2_e2m1", "cuda_fp4.h"),
    ],
)
def test_a_missing_include(name: str, header: str) -> None:
    text = f"__global__ void f({name}* x) {{}}"
    with pytest.raises(CompilationError, match=f"NVRTC .*: {name} needs #include <{header}>"):
        compiled(text, "f")
    type_ = {"half": "__half"}.get(name, name)
    assert compiled(f"#include <{header}>\n{text}", "f").types == (f"{type_}*",)


def test_the_error_has_the_compilers_text_and_the_line(tmp_path: Path) -> None:
    text = "__global__ void f(float* x) {\n  x[0] = y;\n}"
    with pytest.raises(CompilationError) as error:
        compiled(text, "f")
    assert "cuda_kernel 'f' does not compile for sm_90a with NVRTC" in str(error.value)
    assert 'kernel.cu(2): error: identifier "y" is undefined' in str(error.value)
    assert "x[0] = y;" in str(error.value)
    file = tmp_path / "own.cu"
    with pytest.raises(CompilationError, match=re.escape(f"{file}(2): error")):
        compiled(text, "f", file=file)


def test_a_name_that_is_no_kernels() -> None:
    sentence = r"NVRTC [\d.]+: the name 'sqare' is not a kernel's: the source has square$"
    with pytest.raises(CompilationError, match=sentence):
        compiled(SQUARE, "sqare")
    with pytest.raises(CompilationError) as error:
        compiled("this is not CUDA", "square")
    first, second, *_ = str(error.value).splitlines()
    assert first.endswith(
        "the name 'square' is not a kernel's: the source has no __global__ function"
    )
    assert second == "kernel.cu(1): error: expected a declaration"
    assert "__nv_name_map" not in str(error.value)


def test_architectures_that_there_are_not() -> None:
    with pytest.raises(ValueError, match=r"does not compile for sm_17; it compiles for .*90"):
        compiled(SQUARE, "square", "sm_17")
    with pytest.raises(ValueError, match="'90' is not of the form sm_90 or compute_90"):
        compiled(SQUARE, "square", "90")
    assert compiler.architecture_for(90, [80, 90]) == "sm_90a"
    assert compiler.architecture_for(80, [80, 90]) == "sm_80"
    # A newer GPU than NVRTC knows: PTX, which its driver compiles.
    assert compiler.architecture_for(103, [80, 90, 100]) == "compute_100"
    with pytest.raises(RuntimeError, match="80 and newer, but the GPU has 60"):
        compiler.architecture_for(60, [80, 90])


def test_the_cache(compilations: list[str], folder: Path) -> None:
    first = compiled(SQUARE, "square")
    assert compiled(SQUARE, "square") == first
    assert compilations == ["-arch=sm_90a"]
    assert len(list(folder.iterdir())) == 1
    # Every change of the compiled source gives another kernel.
    compiled(SQUARE + " ", "square")
    compiled(SQUARE, "square", "sm_80")
    compiled(SQUARE, "square", options=("--use_fast_math",))
    assert len(compilations) == 4
    assert len(list(folder.iterdir())) == 4
    compiled(SCALE, "own::scale<float, 2>")
    compiled(SCALE, "own::scale<float, 3>")
    assert len(compilations) == 6


def test_another_nvrtc_is_another_kernel(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(SQUARE, "square")
    monkeypatch.setattr(nvrtc.find(), "version", (12, 99))
    compiled(SQUARE, "square")
    assert len(compilations) == 2


def test_a_damaged_file_is_compiled_again(compilations: list[str], folder: Path) -> None:
    first = compiled(SQUARE, "square")
    (file,) = folder.iterdir()
    content = file.read_bytes()
    for damaged in (b"", content[:-100], content[:-1] + b"?", b"[]\n", b"\xff\xfe"):
        file.write_bytes(damaged)
        assert compiled(SQUARE, "square") == first
        assert file.read_bytes() == content
    assert len(compilations) == 6


def test_without_a_cache(
    compilations: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.FOLDER_VARIABLE, "")
    for _ in range(2):
        compiled(SQUARE, "square")
    assert len(compilations) == 2
    folder.write_text("a file in its place")
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(folder))
    compiled(SQUARE, "square")  # with a line in the log
    monkeypatch.delenv(cache.FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder() == Path("/somewhere/torch_xla_ext/kernels")


INCLUDING = '#include "factor.h"\n__global__ void f(float* x) { x[0] = FACTOR; }'


def test_a_changed_header_is_another_kernel(compilations: list[str], tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second, first / "deep"):
        path.mkdir()
    (second / "factor.h").write_text("#if 0\n#include <deep/real.h>\n#endif\n#define FACTOR 2")
    folders = {"include_dirs": (first, second)}
    modules = [compiled(INCLUDING, "f", **folders).module for _ in range(2)]
    assert len(compilations) == 1
    # Changes: the header's content, a file that it may include, and a file found before it.
    (second / "factor.h").write_text('#include "other.h"\n#define FACTOR 3')
    (second / "other.h").write_text("")
    modules.append(compiled(INCLUDING, "f", **folders).module)
    (second / "other.h").write_text("// changed")
    compiled(INCLUDING, "f", **folders)
    (first / "factor.h").write_text("#define FACTOR 4")
    modules.append(compiled(INCLUDING, "f", **folders).module)
    assert len(compilations) == 4
    assert modules[0] == modules[1]
    assert len(set(modules)) == 3


def test_a_computed_include_is_not_cached(compilations: list[str], tmp_path: Path) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 2")
    computed = '#define HEADER "factor.h"\n' + INCLUDING.replace('"factor.h"', "HEADER")
    for text in (computed, INCLUDING.replace("include", "include_next")):
        compilations.clear()
        for _ in range(2):
            compiled(text, "f", include_dirs=(tmp_path,))
        assert len(compilations) == 2


def test_a_missing_header() -> None:
    with pytest.raises(CompilationError, match=r"pass the folder of factor\.h in include_dirs"):
        compiled(INCLUDING, "f")


def test_headers_beside_a_file(tmp_path: Path) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 2")
    (tmp_path / "own.cu").write_text(INCLUDING)
    kernel = torch_xla_ext.cuda_kernel(tmp_path / "own.cu", "f")
    assert list(kernel.compile("sm_80")) == ["f"]
    again = torch_xla_ext.cuda_kernel(str(tmp_path / "own.cu"), "f")
    assert again.compile("sm_80") == kernel.compile("sm_80")
    with pytest.raises(FileNotFoundError):
        torch_xla_ext.cuda_kernel("missing.cu", "f")


def system(tmp_path: Path, **environ: str) -> discovery.System:
    return discovery.System(
        environ, [str(tmp_path)], None, toolkit_folders=(str(tmp_path / "cuda"),)
    )


def test_without_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_load", lambda path: (_ for _ in ()).throw(OSError(path)))
    with pytest.raises(RuntimeError, match="pip install nvidia-cuda-nvrtc, or set TORCH_XLA_EXT_N"):
        nvrtc.find(system(tmp_path))
    with pytest.raises(
        RuntimeError, match="TORCH_XLA_EXT_NVRTC does not name an NVRTC library: /no/such"
    ):
        nvrtc.find(system(tmp_path, TORCH_XLA_EXT_NVRTC="/no/such"))


def test_nvrtc_of_the_plugins_cuda_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        12: tmp_path / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        13: tmp_path / "nvidia/cu13/lib/libnvrtc.so.13",
    }
    for file in files.values():
        file.parent.mkdir(parents=True)
        file.touch()
    monkeypatch.setattr(nvrtc, "_load", lambda path: path)
    assert nvrtc.find(system(tmp_path)) == str(files[13])
    plugin = tmp_path / "jax_plugins/xla_cuda12/xla_cuda_plugin.so"
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    assert nvrtc.find(system(tmp_path)) == str(files[12])
    toolkit = tmp_path / "cuda/lib64/libnvrtc.so.12"
    toolkit.parent.mkdir(parents=True)
    toolkit.touch()
    os.remove(files[12])  # noqa: PTH107
    assert nvrtc.find(system(tmp_path)) == str(toolkit)
