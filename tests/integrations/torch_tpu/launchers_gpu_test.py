"""Triton kernels, tuning and functions of TVM-FFI on a GPU. launchers_test.py runs there, too."""

import sys
from pathlib import Path

import pytest
import torch
import torch_xla_gpu
import triton
from torch_xla_gpu import cuda_kernel, triton_call, tvm_ffi_call

sys.path.insert(0, str(Path(__file__).parents[2] / "launchers"))
import triton_kernels

TPU = torch_xla_gpu.device.TYPE
SQUARE = """
template <int kBlock>
__global__ void __launch_bounds__(kBlock) square(const float* x, float* out, int n) {
  int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < n) out[i] = x[i] * x[i];
}
"""
pytestmark = pytest.mark.skipif(
    torch_xla_gpu.device.current().platform != "CUDA", reason="needs PJRT_DEVICE=CUDA"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_XLA_EXT_KERNEL_CACHE", str(tmp_path))
    return tmp_path / "tuned"


def test_configurations_are_timed(cache: Path) -> None:
    kernel = cuda_kernel(
        SQUARE,
        "square<{BLOCK}>",
        signature="(x: F32[n]) -> (out: F32[n])",
        grid=lambda call: -(-call["n"] // call["BLOCK"]),
        block=lambda call: call["BLOCK"],
        configs=[{"BLOCK": 64}, {"BLOCK": 256}],
    )
    x = torch.randn(100_000)
    assert torch.equal(kernel(x.to(TPU))[0].cpu(), x * x)
    assert len(list(cache.iterdir())) == 1


def test_an_autotuned_triton_kernel(cache: Path) -> None:
    x = torch.randn(4, 100)
    grid = lambda meta: triton.cdiv(400, meta["BLOCK"])  # noqa: E731
    (y,) = triton_call(triton_kernels.tuned, x.to(TPU), n=400, outputs=[x], grid=grid)
    assert torch.equal(y.cpu(), x + 1)
    assert len(list(cache.iterdir())) == 1


def test_many_triton_launches_in_a_program() -> None:
    x = torch.randn(4, 100)

    @torch.library.custom_op("launchers_gpu_test::add", mutates_args=())
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        call = {"aliases": ["state_ptr"], "grid": 1, "n": 400, "factor": 0.5, "BLOCK": 512}
        return triton_call(triton_kernels.add_scaled, x, y, **call)[0]

    add.register_fake(lambda x, y: torch.empty_like(x))

    def steps(x: torch.Tensor) -> torch.Tensor:
        for _ in range(32):
            x = add(x, x * 0.25)
        return x

    result = torch.compile(steps, fullgraph=True)(x.to(TPU))
    torch.testing.assert_close(result.cpu(), x * 1.125**32, rtol=1e-4, atol=1e-4)


def test_a_function_of_tvm_ffi() -> None:
    package = pytest.importorskip("tvm_ffi")

    def scale(x: object, out: object, factor: float) -> None:
        torch.cuda.synchronize()  # it does not use XLA's stream
        torch.from_dlpack(out).copy_(torch.from_dlpack(x) * factor)
        torch.cuda.synchronize()

    x = torch.randn(1000)
    (y,) = tvm_ffi_call(package.convert(scale), x.to(TPU), 3.0, outputs={1: x})
    torch.testing.assert_close(y.cpu(), x * 3)
