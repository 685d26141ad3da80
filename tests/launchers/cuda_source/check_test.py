"""Kernels are checked without a GPU: by `check`, `compile`, `save`, and calls on the CPU."""

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cuda_source.sources import SCALE, SQUARE
from torch_xla_ext import CudaKernel, cuda_kernel, define_operator
from xla_kernels.cuda_source import machine_code, nvrtc
from xla_kernels.cuda_source.nvrtc import CompilationError
from xla_kernels.signature import examples, parse


def squares(source: str = SQUARE, name: str = "square", **options: object) -> CudaKernel:
    given = {
        "signature": "(x: F32[n]) -> (out: F32[n])",
        "grid": lambda call: -(-call["n"] // 256),
        "block": 256,
        "reference": lambda x: x * x,
    }
    return cuda_kernel(source, name, **{**given, **options})


WRONG = [
    ({"source": "this is not CUDA"}, CompilationError, r"kernel.cu\(1\): error: expected a decl"),
    ({"name": "sqare"}, CompilationError, "'sqare' is not a kernel's: the source has square"),
    (
        {"source": SQUARE.replace("const float*", "const double*")},
        TypeError,
        r"parameter 0 \(x\): the kernel's parameter is double const\*, an array of F64, but",
    ),
    (
        {"source": SQUARE.replace("int n", "int m").replace("< n", "< m")},
        ValueError,
        "the kernel's parameter 'm' is not in the signature",
    ),
    ({"block": 2048}, ValueError, r"block must have 1 to 1024 threads, .* but is \(2048, 1, 1\)"),
    ({"block": lambda call: call["n"] * 1025}, ValueError, "block must have 1 to 1024 threads"),
    ({"grid": (1, 65536)}, ValueError, r"grid must be at most \(2147483647, 65535, 65535\)"),
    (
        {"grid": lambda call: call["typo"]},
        ValueError,
        r"grid raised KeyError: 'typo'; it receives n, x",
    ),
    ({"shared_bytes": -1}, ValueError, "shared_bytes must be a number of bytes, but is -1"),
    ({"shared_bytes": 233_000}, ValueError, r"shared_bytes must be at most \d+, .*but is 233000"),
    (
        {"source": SQUARE.replace("void square", "void __launch_bounds__(128) square")},
        ValueError,
        r"at most 128 threads, as its __launch_bounds__ say, but is \(256, 1, 1\)",
    ),
    (
        {"source": f"namespace own {{ {SQUARE} }}"},
        CompilationError,
        "'square' is not a kernel's: the source has square; if it is in a namespace .*'ns::square'",
    ),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG)
def test_wrong_kernels(
    options: dict[str, object], error: type[Exception], text: str, device: torch.device
) -> None:
    kernel = squares(**options)
    with pytest.raises(error, match=text):
        kernel.check()
    with pytest.raises(error, match=text):
        kernel.check(torch.empty(300, device="meta"), architectures=["sm_80", "compute_90"])
    x = torch.randn(300)
    define_operator("check_test::square(Tensor x) -> Tensor", target=kernel, replace=True)
    for function in (kernel, torch.ops.check_test.square):
        for _ in range(2):  # what was wrong stays so
            with pytest.raises(error, match=text):
                function(x.to(device))
    with pytest.raises(error, match=text):
        torch.ops.check_test.square(x)


def test_right_ones_compute(device: torch.device) -> None:
    kernel, x = squares(), torch.randn(300)
    assert kernel.check() is None
    kernel.check(x, architectures="sm_80")
    assert torch.equal(kernel(x.to(device))[0].cpu(), x * x)


def test_without_grid_and_block(device: torch.device) -> None:
    kernel = squares(grid=None, block=None)
    kernel.check()  # they are given by kernel[grid, block]
    x = torch.randn(300).to(device)
    kernel[2, 256](x)
    for call in (lambda: kernel(x), lambda: kernel[2, 1025](x)):
        with pytest.raises(
            (TypeError, ValueError), match=r"give both beforehand|1 to 1024 threads"
        ):
            call()
    with pytest.raises(TypeError, match="double const"):
        squares(SQUARE.replace("const float*", "const double*"), grid=None, block=None).check()


@pytest.mark.parametrize("architectures", [90, []])
def test_wrong_architectures(architectures: object) -> None:
    with pytest.raises(TypeError, match="architectures must be a str such as 'sm_90a', or a list"):
        squares().check(architectures=architectures)


def test_without_a_signature(device: torch.device) -> None:
    x = torch.randn(300).to(device)
    kernel = cuda_kernel(SQUARE, "square", reference=lambda x, n: x * x)
    kernel.check()
    kernel[2, 256](x, 300, outputs=[x])
    with pytest.raises(ValueError, match="block must have 1 to 1024 threads"):
        kernel[2, 2048](x, 300, outputs=[x])
    with pytest.raises(ValueError, match="block must have 1 to 1024 threads"):
        cuda_kernel(SQUARE, "square", grid=1, block=2048).check()
    with pytest.raises(TypeError, match="check takes arguments only with a signature"):
        kernel.check(x)
    wrong = cuda_kernel(
        "__global__ void square(const float* x, float* out, int n) { y; }", "square"
    )
    with pytest.raises(CompilationError, match='identifier "y" is undefined'):
        wrong.check()


def test_all_dtypes_are_checked() -> None:
    def scales(source: str) -> CudaKernel:
        return cuda_kernel(
            source,
            "own::scale<{T}, 3>",
            signature="(x: T[*shape]) -> (out: T[*shape]) where T: F32 | F16 | BF16",
            arguments="x out x.size",
            grid=1,
            block=256,
        )

    scales(SCALE).check()
    mixed = scales(
        SCALE.replace("const T* __restrict__ x", "const float* x").replace("* x[i]", "* T(x[i])")
    )
    for check in (mixed.check, lambda: mixed.compile("sm_90a")):
        with pytest.raises(
            TypeError, match=r"is float const\*, an array of F32, but the array is F"
        ):
            check()
    # An instance that is named is checked for its own dtype.
    assert len(mixed.compile("sm_90a", instances=["own::scale<float, 3>"])) == 1
    with pytest.raises(TypeError, match="the array is BF16"):
        mixed.compile("sm_90a", instances=["own::scale<__nv_bfloat16, 3>"])


def test_save_checks_types(tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    with pytest.raises(TypeError, match=r"double const\*"):
        squares(SQUARE.replace("const float*", "const double*")).save(path, ["sm_80"])
    assert not path.exists()
    squares().save(path, ["sm_80", "compute_90"])
    saved = {"signature": "(x: F32[n]) -> (out: F32[n])", "grid": 1, "reference": torch.square}
    x = torch.randn(9, device="xla")
    CudaKernel.from_file(path, **saved, block=32)(x)
    with pytest.raises(ValueError, match="block must have 1 to 1024"):
        CudaKernel.from_file(path, **saved, block=2048)(x)
    wrong = CudaKernel.from_file(
        path, **saved | {"signature": "(x: F16[n]) -> (out: F32[n])"}, block=1
    )
    for call in (lambda: wrong.check(architectures="sm_80"), lambda: wrong(x.half())):
        with pytest.raises(TypeError, match="an array of F32, but the array is F16"):
            call()


def test_a_references_error_names_the_kernel(device: torch.device) -> None:
    def fails(x: Tensor) -> Tensor:
        raise IndexError("list index out of range")

    with pytest.raises(
        RuntimeError, match="'square': its reference raised IndexError: list in"
    ) as e:
        squares(reference=fails)(torch.ones(3, device=device))
    assert isinstance(e.value.__cause__, IndexError)


def test_without_nvrtc_the_source_is_not_read(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    def find() -> None:
        raise nvrtc.MissingError("NVRTC is not installed")

    monkeypatch.setattr(nvrtc, "find", find)
    x = torch.ones(3, device=device)
    squares("this is not CUDA")(x)
    with pytest.raises(RuntimeError, match="NVRTC is not installed"):
        squares().check()
    # The launch and the types in the source are checked.
    with pytest.raises(ValueError, match="1 to 1024"):
        squares(block=2048)(x)
    with pytest.raises(TypeError, match=r"is double const\*"):
        squares(SQUARE.replace("const float*", "const double*"))(x)


def test_headers_that_this_machine_lacks(device: torch.device) -> None:
    kernel = squares('#include "of_another_machine.h"\n' + SQUARE)
    with pytest.warns(UserWarning, match="not checked on the CPU.*\n.*of_another_machine"):
        kernel(torch.ones(3, device=device))
    kernel(torch.ones(4, device=device))  # one warning
    with pytest.raises(CompilationError, match="cannot open source file"):
        kernel.check()


def test_the_variable(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    text = "#if __CUDA_ARCH__ < 1000\n#error for Blackwell\n#endif\n" + SQUARE
    x = torch.ones(3, device=device)
    with pytest.raises(CompilationError, match="for Blackwell"):
        squares(text)(x)
    for value in ("compute_100", ""):
        monkeypatch.setenv(machine_code.CHECK_VARIABLE, value)
        squares(text)(x)


def test_a_call_is_checked_once(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    asked = []
    kernel = squares(grid=lambda call: asked.append(call["n"]) or 1)
    for n in (3, 3, 4, 3, 4):
        kernel(torch.ones(n, device=device))
    assert asked == [3, 4]


def test_a_long_kernel_is_checked_quickly() -> None:
    lines = [f"    value = fmaf(value, {i}.5f, s[(threadIdx.x + {i}) % 256]);" for i in range(190)]
    text = "\n".join(
        [
            "__global__ void square(const float* x, float* out, int n) {",
            "  __shared__ float s[256];",
            "  int i = blockIdx.x * blockDim.x + threadIdx.x;",
            "  s[threadIdx.x] = i < n ? x[i] : 0;",
            "  __syncthreads();",
            "  float value = 1;",
            *lines,
            "  if (i < n) out[i] = value;",
            "}",
        ]
    )
    begin = time.perf_counter()
    squares(text).check()
    assert time.perf_counter() - begin < 2


def test_made_up_calls() -> None:
    schema = parse.parse(
        "f",
        "(x: T[*b, heads, d], y?: C[2 * n + 1], z: S32[m, kv]) -> (out: C[heads, m], w: F32[size]) "
        "where T: F16 | BF16, C: T | F8E4M3FN, heads % kv == 0, d: 64 | 128, m: 8..20",
        "size: i32 in [3, 5], eps: f32, causal: bool",
    )
    chosen = list(examples.dtypes(schema))
    assert chosen == [
        {"T": "F16", "C": "F16"},
        {"T": "F16", "C": "F8E4M3FN"},
        {"T": "BF16", "C": "BF16"},
        {"T": "BF16", "C": "F8E4M3FN"},
    ]
    made = [next(examples.examples(schema, each)) for each in chosen]
    for example in made:
        schema.check((*example.operands, *example.results), schema.sizes(example.parameters))
