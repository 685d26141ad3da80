"""Triton kernels and functions of TVM-FFI: on the CPU they run, and for a GPU they are traced."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch_xla_gpu
import triton
from torch import Tensor
from torch.library import triton_op, wrap_triton
from torch_xla_gpu import compile_triton_kernel, register_kernel, triton_call, tvm_ffi_call

from xla_kernels.triton import triton_call as triton_module

sys.path.insert(0, str(Path(__file__).parents[2] / "launchers"))
import triton_kernels
from tvm_ffi_library import RMS_NORM, compiled

TPU = torch_xla_gpu.device.TYPE
ON_GPU = torch_xla_gpu.device.current().platform == "CUDA"


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    call = {"outputs": [x], "columns": 100, "epsilon": 0.5, "BLOCK": 128}
    return triton_call(triton_kernels.rms_norm, x, weight, grid=x.shape[0], **call)[0]


def expected_norm(x: Tensor, weight: Tensor | None) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[1:], weight, 0.5)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 100)


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(100)


def test_triton_call(x: Tensor, weight: Tensor) -> None:
    expected = expected_norm(x, weight)
    torch.testing.assert_close(rms_norm(x.to(TPU), weight.to(TPU)).cpu(), expected)
    view = x.t().contiguous().to(TPU).t()
    torch.testing.assert_close(rms_norm(view, weight.to(TPU)).cpu(), expected)


def test_triton_call_that_writes(x: Tensor) -> None:
    state = x.to(TPU)
    (new,) = triton_call(
        triton_kernels.add_scaled, state, state + 1, 400, 2.0, 512, grid=1, aliases=["state_ptr"]
    )
    torch.testing.assert_close(new.cpu(), 3 * x + 2)
    assert torch.equal(state.cpu(), x)


def test_tuples_and_autotuned_kernels(x: Tensor) -> None:
    on_device = x.to(TPU)
    pair = on_device, on_device * 2
    (y,) = triton_call(
        triton_kernels.scaled_sum, pair, sizes=(400, 3.0), BLOCK=64, outputs=[x], grid=7
    )
    torch.testing.assert_close(y.cpu(), x * 5)
    grid = lambda meta: triton.cdiv(400, meta["BLOCK"])  # noqa: E731
    (y,) = triton_call(triton_kernels.tuned, on_device, n=400, outputs=[x], grid=grid)
    assert torch.equal(y.cpu(), x + 1)


def test_tritons_own_launch(x: Tensor, weight: Tensor) -> None:
    y = torch.empty(4, 100, device=TPU)
    triton_kernels.rms_norm[(4,)](x.to(TPU), weight.to(TPU), y, 100, 0.5, BLOCK=128)
    torch.testing.assert_close(y.cpu(), expected_norm(x, weight))
    whole = torch.zeros(3, 400, device=TPU)
    triton_kernels.add_scaled[(1,)](whole[1], x.to(TPU), 400, 2.0, BLOCK=512)
    assert torch.equal(whole.cpu()[1], x.flatten() * 2)
    assert not whole.cpu()[::2].any()
    with pytest.raises(TypeError, match="y_ptr is on cpu, but other tensors are XLA's"):
        triton_kernels.tuned.fn[(1,)](x.to(TPU), x, 400, BLOCK=512)


@triton_op("torch_tpu_launchers::norm", mutates_args=())
def norm(x: Tensor, weight: Tensor) -> Tensor:
    y = torch.empty_like(x)
    wrap_triton(triton_kernels.rms_norm)[(x.shape[0],)](x, weight, y, 100, 0.5, BLOCK=128)
    return y


@torch.library.custom_op("torch_tpu_launchers::other_norm", mutates_args=())
def other_norm(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, weight)


@other_norm.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("operator", [norm, other_norm])
def test_an_operator_of_a_triton_kernel(operator: Callable, x: Tensor, weight: Tensor) -> None:
    result = operator(x.to(TPU), weight.to(TPU))
    torch.testing.assert_close(result.cpu(), expected_norm(x, weight))


@pytest.mark.skipif(ON_GPU, reason="Triton's interpreter is for the CPU")
def test_a_triton_kernel_in_a_program_for_the_cpu(x: Tensor, weight: Tensor) -> None:
    with pytest.raises(
        Exception, match=r"xla_kernels_triton::interpret is computed on the CPU.*outs"
    ):
        torch.compile(other_norm)(x.to(TPU), weight.to(TPU))


def test_a_wrong_triton_call(x: Tensor) -> None:
    call = {"outputs": [x], "grid": 1, "n": 400, "BLOCK": 512}
    with pytest.raises(TypeError, match="tuned: none of its arguments is an XLA tensor"):
        triton_call(triton_kernels.tuned.fn, 3, **call)
    with pytest.raises(ValueError, match="tensor 0 must be on the device tpu, but is on cpu"):
        triton_call(triton_kernels.tuned.fn, x, **call)
    leaf = x.to(TPU).requires_grad_()
    (y,) = triton_call(triton_kernels.tuned.fn, leaf, **call)
    with pytest.raises(NotImplementedError, match="no derivative"):
        y.sum().backward()


class TestOnAGpu:
    """What a GPU gets; calls are not run."""

    @pytest.fixture(autouse=True)
    def on_a_gpu(self, monkeypatch: pytest.MonkeyPatch, traced: object) -> None:
        monkeypatch.setattr(triton_module, "compute_capability", lambda: 90)

    def test_a_call(self, traced: list, x: Tensor, weight: Tensor) -> None:
        rms_norm(x.to(TPU), weight.to(TPU))
        (call,) = traced
        assert 'custom_call @"XlaGpuCompiledKernel"(%arg0, %arg1)' in call.text
        assert 'kernel = "rms_norm"' in call.text
        assert "7FELF" in call.text
        assert "grid = array<i32: 4, 1, 1>" in call.text
        assert call.words[:3] == ["t0", "t1", "r0"]

    @pytest.mark.parametrize("operator", [norm, other_norm])
    def test_an_operator_in_a_program(
        self, traced: list, operator: Callable, x: Tensor, weight: Tensor
    ) -> None:
        step = torch.compile(lambda x, weight: operator(x * 2, weight) + 1, fullgraph=True)
        step(x.to(TPU), weight.to(TPU))
        (call,) = traced
        assert 'kernel = "rms_norm"' in call.text

    def test_a_kernel_that_is_compiled_ahead(self, traced: list, x: Tensor) -> None:
        call = {"outputs": [x], "n": 400, "BLOCK": 512}
        kernel = compile_triton_kernel(triton_kernels.tuned.fn, x, capability=90, **call)
        triton_call(kernel, x.to(TPU), grid=1, **call)
        assert 'kernel = "tuned"' in traced[0].text
        with pytest.raises(ValueError, match="BLOCK was compiled as 512, but is 256"):
            triton_call(kernel, x.to(TPU), grid=1, **{**call, "BLOCK": 256})

    def test_writes(self, traced: list, x: Tensor) -> None:
        state = x.to(TPU)
        triton_kernels.add_scaled[(1,)](state, x.to(TPU), 400, 2.0, BLOCK=512)
        (call,) = traced
        assert call.donated == [0]
        assert call.words[:2] == ["r0", "t1"]

    def test_workspaces_are_not_returned(
        self, traced: list, x: Tensor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kernel = compile_triton_kernel(
            triton_kernels.tuned.fn, x, capability=90, outputs=[x], n=400, BLOCK=512
        )
        object.__setattr__(kernel, "scratch", 128)
        results = triton_call(kernel, x.to(TPU), outputs=[x], n=400, BLOCK=512, grid=3)
        assert [tuple(result.shape) for result in results] == [(4, 100)]
        assert "tensor<384xui8>" in traced[0].text


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tvm_ffi")
    if ON_GPU:
        pytest.skip("its functions are for the CPU")
    return compiled(tmp_path_factory.mktemp("tvm_ffi") / "functions.so")


def test_a_tvm_ffi_operator(library: Path, x: Tensor, weight: Tensor) -> None:
    platform = torch_xla_gpu.device.current().platform
    targets = register_kernel("TvmNorm", library, abi="tvm-ffi", **RMS_NORM)
    assert targets == [("TvmNorm", platform)]
    assert targets[0] in torch_xla_gpu.registered_targets()
    operator = torch_xla_gpu.define_operator(
        "torch_tpu_launchers::tvm_norm(Tensor x, Tensor? weight, float epsilon, "
        'bool add_one=False, str mode="mean") -> Tensor',
        target="TvmNorm",
        replace=True,
    )
    a, b = x.to(TPU), weight.to(TPU)
    torch.testing.assert_close(operator(a, b, 0.5).cpu(), expected_norm(x, weight))
    torch.testing.assert_close(operator(a, None, 0.5).cpu(), expected_norm(x, None))
    step = torch.compile(lambda x, w: operator(x * 2, w, 0.5) + 1, fullgraph=True)
    torch.testing.assert_close(step(a, b).cpu(), expected_norm(x * 2, weight) + 1)
    with pytest.raises(ValueError, match=r"epsilon: expected 0.0 to 1.0 but got 2"):
        operator(a, b, 2.0)
    with pytest.raises(TypeError, match=r"operand 0 \(x\): expected dtype F32 but got BF16"):
        operator(a.bfloat16(), b, 0.5)


def test_a_tvm_ffi_operator_in_place(library: Path) -> None:
    register_kernel(
        "TvmAdd",
        library,
        abi="tvm-ffi",
        symbol="add_in_place",
        signature="(state: F32[n], x: F32[n]) -> (state)",
        parameters="times: i64",
    )
    operator = torch_xla_gpu.define_in_place_operator(
        "torch_tpu_launchers::add_(Tensor(a!) state, Tensor x, int times) -> ()",
        target="TvmAdd",
        replace=True,
    )
    state, x = torch.randn(10), torch.randn(10)
    on_device = state.to(TPU)
    operator(on_device, x.to(TPU), 2)
    torch.testing.assert_close(on_device.cpu(), state + 2 * x)


def test_a_tvm_ffi_function_that_is_registered_again(library: Path, tmp_path: Path) -> None:
    x = torch.ones(3)
    signature = {"symbol": "twice", "signature": "(x: F32[n]) -> (out: F32[n])"}
    copy = tmp_path / "functions.so"
    for factor in (2, 3):
        register_kernel(
            "TvmTwice", compiled(copy, f"-DFACTOR={factor}"), abi="tvm-ffi", **signature
        )
        operator = torch_xla_gpu.define_operator(
            "torch_tpu_launchers::twice(Tensor x) -> Tensor", target="TvmTwice", replace=True
        )
        assert operator(x.to(TPU)).tolist() == [factor] * 3


@pytest.fixture
def axpy() -> object:
    package = pytest.importorskip("tvm_ffi")
    if ON_GPU:
        pytest.skip("launchers_gpu_test.py has one for a GPU")

    def axpy(x: object, out: object, factor: float, y: object, name: str) -> None:
        result = torch.from_dlpack(x) * factor
        if y is not None:
            result += torch.from_dlpack(y)
        if name != "axpy":
            raise ValueError(f"no such function: {name}")
        torch.from_dlpack(out).copy_(result)

    return package.convert(axpy)


def test_tvm_ffi_call(axpy: object) -> None:
    x = torch.randn(5)
    on_device = x.to(TPU)
    (y,) = tvm_ffi_call(axpy, on_device, 2.0, on_device, "axpy", outputs={1: x})
    torch.testing.assert_close(y.cpu(), x * 3)
    (y,) = tvm_ffi_call(axpy, on_device, 2.0, None, "axpy", outputs={1: x})
    torch.testing.assert_close(y.cpu(), x * 2)
    state = on_device + 1
    (new,) = tvm_ffi_call(axpy, on_device, state, 3, on_device, "axpy", aliases=[1])
    torch.testing.assert_close(new.cpu(), x * 4)
    torch.testing.assert_close(state.cpu(), x + 1)


def test_wrong_calls_of_tvm_ffi(axpy: object, library: Path) -> None:
    x = torch.ones(5, device=TPU)
    with pytest.raises(RuntimeError, match="ValueError: no such function: saxpy"):
        tvm_ffi_call(axpy, x, 2.0, None, "saxpy", outputs={1: x})[0].cpu()
    with pytest.raises(ValueError, match="tensor 0 must be on the device tpu, but is on cpu"):
        tvm_ffi_call(axpy, x.cpu(), 2.0, None, "axpy", outputs={1: x})
    with pytest.raises(TypeError, match="none of the function's arguments is an XLA tensor"):
        tvm_ffi_call(axpy, 2.0, outputs=[x])
    with pytest.raises(AttributeError, match="no TVM-FFI function 'rms'; similar are rms_norm"):
        register_kernel("TvmBad", library, abi="tvm-ffi", symbol="rms")
    with pytest.raises(ValueError, match='unknown argument "out"'):
        register_kernel("TvmBad", library, abi="tvm-ffi", symbol="twice", arguments="args out")
    other = {"CUDA": "Host", "Host": "CUDA"}[torch_xla_gpu.device.current().platform]
    with pytest.raises(ValueError, match=f"platform must be .*, but is '{other}'"):
        register_kernel("TvmBad", library, abi="tvm-ffi", symbol="twice", platform=other)
    with pytest.raises(ValueError, match=re.escape("abi must be 'kernel.h' or 'tvm-ffi'")):
        register_kernel("TvmBad", library, abi="tvm")
