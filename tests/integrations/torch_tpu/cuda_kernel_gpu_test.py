"""cuda_kernel on a GPU: results, in programs, in place, errors."""

import sys
from pathlib import Path

import pytest
import torch
import torch_xla_gpu
from torch_xla_gpu import CudaKernel, cuda_kernel

sys.path.insert(0, str(Path(__file__).parents[2]))
from testing.cuda_sources import AXPY, SHARED, axpy

TPU = torch_xla_gpu.device.TYPE
ADD_TO = """
extern "C" __global__ void add_to(float* state, const float* x, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) state[i] += factor * x[i];
}
"""
pytestmark = pytest.mark.skipif(
    torch_xla_gpu.device.current().platform != "CUDA", reason="needs PJRT_DEVICE=CUDA"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_XLA_EXT_KERNEL_CACHE", str(tmp_path / "kernels"))


def add_to() -> CudaKernel:
    return cuda_kernel(
        ADD_TO,
        "add_to",
        signature="(state: F32[n], x: F32[n]) -> (state)",
        parameters="factor: f32",
        arguments="state x factor n",
        grid=lambda call: -(-call["n"] // 256),
        block=256,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_operator(dtype: torch.dtype) -> None:
    operator = torch_xla_gpu.define_operator(
        "gpu_cuda_kernel::axpy(Tensor x, Tensor y, float a) -> Tensor",
        target=axpy(cuda_kernel),
        replace=True,
    )
    x, y = torch.randn(33, 70).to(dtype), torch.randn(33, 70).to(dtype)
    expected = (2.5 * x.double() + y.double()).to(dtype)
    torch.testing.assert_close(operator(x.to(TPU), y.to(TPU), 2.5).cpu(), expected)
    compiled = torch.compile(lambda x, y: operator(x, y, 2.5) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(x.to(TPU), y.to(TPU)).cpu(), expected * 2)
    # Views have strides, and kernels see none.
    square = torch.randn(20, 20).to(dtype)
    result = operator(square.to(TPU).t(), square.to(TPU), 1.0)
    torch.testing.assert_close(result.cpu(), square.t() + square)


def test_a_call_without_an_operator() -> None:
    x = torch.randn(1000)
    kernel = axpy(cuda_kernel)
    on_device, total, expected = x.to(TPU), x.to(TPU), x
    for _ in range(32):
        (total,) = kernel(total, on_device, 0.5)
        expected = 0.5 * expected + x
    torch.testing.assert_close(total.cpu(), expected)


def test_a_call_writes_to_a_copy() -> None:
    state, x = torch.randn(1000), torch.randn(1000)
    before = state.to(TPU)
    (after,) = add_to()(before, x.to(TPU), 2.0)
    torch.testing.assert_close(after.cpu(), state + 2 * x)
    assert torch.equal(before.cpu(), state)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_operator_that_writes_in_place(compiled: bool) -> None:
    operator = torch_xla_gpu.define_in_place_operator(
        "gpu_cuda_kernel::add_to(Tensor(a!) state, Tensor x, float factor) -> ()",
        target=add_to(),
        replace=True,
    )
    state, x = torch.randn(1000), torch.randn(1000)
    on_device = state.to(TPU)

    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        operator(state, x, 2.0)
        return state.sum()

    function = torch.compile(step, fullgraph=True) if compiled else step
    for _ in range(3):
        total = function(on_device, x.to(TPU))
    torch.testing.assert_close(on_device.cpu(), state + 6 * x, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total.cpu(), (state + 6 * x).sum(), rtol=1e-4, atol=1e-4)


def test_shared_memory() -> None:
    kernel = cuda_kernel(SHARED, "reverse")
    for n in (100, 50_000, 20_000):  # 200 KB, more than before and then less
        x = torch.randn(n)
        (y,) = kernel[1, 1024, 4 * n](x.to(TPU), n, outputs=[x])
        assert torch.equal(y.cpu(), x.flip(0))


def test_a_launch_that_fails_is_an_error_where_its_result_is_read() -> None:
    x = torch.randn(100)
    # More blocks than can be resident at once.
    kernel = cuda_kernel(SHARED, "reverse", cooperative=True)
    (y,) = kernel[100_000, 1024, 400](x.to(TPU), 100, outputs=[x])
    with pytest.raises(RuntimeError, match=r"reverse.*cuLaunchKernelEx"):
        y.cpu()
    assert torch.equal(axpy(cuda_kernel)(x.to(TPU), x.to(TPU), 1.0)[0].cpu(), 2 * x)


def test_a_kernel_that_does_not_compile() -> None:
    broken = cuda_kernel(AXPY.replace("out[i] =", "out[j] ="), "axpy<float>")
    x = torch.ones(8, device=TPU)
    with pytest.raises(RuntimeError, match=r"'axpy<float>' does not compile for sm_"):
        broken[1, 8](1.0, x, x, 8, outputs=[x])
