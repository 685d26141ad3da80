"""cuda_kernel on a GPU: results, ways to launch, files, and PyTorch's own CUDA tensors."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from testing.cuda_sources import SHARED, axpy

import torch_xla_ext
from torch_xla_ext import CudaKernel, cuda_kernel
from xla_kernels.plugin.driver import compute_capability

ADD_TO = """
struct Range { int begin, end; };
extern "C" __global__ void add_to(float* state, const float* x, Range range) {
  int i = range.begin + threadIdx.x;
  if (i < range.end) state[i] += x[i];
}
"""
# Adds 100 times the number of blocks of the cluster, and the block's rank in it.
CLUSTER = """
__global__ void ranks(const int* x, int* out) {
  unsigned rank, count;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  if (threadIdx.x == 0) out[blockIdx.x] = x[blockIdx.x] + count * 100 + rank;
}
"""
# Every block adds to a sum; after the barrier of the grid each of them reads the whole sum.
COOPERATIVE = """
#include <cooperative_groups.h>
__global__ void sum(const int* x, int* partial, int* out) {
  if (threadIdx.x == 0) partial[blockIdx.x] = x[blockIdx.x];
  cooperative_groups::this_grid().sync();
  int total = 0;
  for (int i = 0; i < gridDim.x; ++i) total += partial[i];
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_XLA_EXT_KERNEL_CACHE", str(tmp_path / "kernels"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_operator(dtype: torch.dtype, device: torch.device) -> None:
    name = f"gpu_cuda_kernel::axpy_{str(dtype).removeprefix('torch.')}"
    operator = torch_xla_ext.define_operator(
        f"{name}(Tensor x, Tensor y, float a) -> Tensor", target=axpy(cuda_kernel)
    )
    x, y = torch.randn(33, 70).to(dtype), torch.randn(33, 70).to(dtype)
    expected = (2.5 * x.double() + y.double()).to(dtype)
    result = operator(x.to(device), y.to(device), 2.5)
    torch.testing.assert_close(result.cpu(), expected)
    compiled = torch.compile(lambda x, y: operator(x, y, 2.5) * 2, backend="openxla")
    torch.testing.assert_close(compiled(x.to(device), y.to(device)).cpu(), expected * 2)
    # Kernels see contiguous tensors, without the strides of views.
    square = torch.randn(20, 20).to(dtype)
    result = operator(square.to(device).t(), square.to(device), 1.0)
    torch.testing.assert_close(result.cpu(), square.t() + square)


def test_in_place(device: torch.device) -> None:
    kernel = cuda_kernel(ADD_TO, "add_to")
    state, x = torch.randn(64), torch.randn(64)
    before = state.to(device)
    (after,) = kernel[1, 64](before, x.to(device), struct.pack("<ii", 8, 32), aliases=["state"])
    expected = state.clone()
    expected[8:32] += x[8:32]
    torch.testing.assert_close(after.cpu(), expected)
    assert torch.equal(before.cpu(), state)


@pytest.mark.parametrize("size", [2, 8, 16])
def test_clusters(size: int, device: torch.device) -> None:
    if compute_capability() < 90:
        pytest.skip("there are clusters from compute capability 9.0 on")
    kernel = cuda_kernel(CLUSTER, "ranks", cluster=size)
    x = torch.zeros(32, dtype=torch.int32, device=device)
    (ranks,) = kernel[32, 32](x, outputs=[x])
    assert ranks.cpu().tolist() == [size * 100 + i % size for i in range(32)]


def test_cooperative(device: torch.device) -> None:
    x = torch.arange(64, dtype=torch.int32)
    kernel = cuda_kernel(COOPERATIVE, "sum", cooperative=True)
    on_device = x.to(device)
    _, total = kernel[64, 32](on_device, outputs=[on_device, on_device])
    assert total.cpu().tolist() == [int(x.sum())] * 64


def test_large_shared_memory(device: torch.device) -> None:
    kernel = cuda_kernel(SHARED, "reverse")
    for n in (100, 50_000, 20_000):  # 200 KB, more than before and then less
        x = torch.randn(n)
        (y,) = kernel[1, 1024, 4 * n](x.to(device), n, outputs=[x])
        assert torch.equal(y.cpu(), x.flip(0))


def test_too_much_shared_memory(device: torch.device) -> None:
    x = torch.randn(100)
    with pytest.raises(ValueError, match=r"shared_bytes must be at most .*, but is 1048576"):
        cuda_kernel(SHARED, "reverse")[1, 32, 1 << 20](x.to(device), 100, outputs=[x])


def test_a_launch_that_the_driver_refuses(device: torch.device) -> None:
    x = torch.randn(100)
    # More blocks than can be resident at once.
    kernel = cuda_kernel(SHARED, "reverse", cooperative=True)
    (y,) = kernel[100_000, 1024, 400](x.to(device), 100, outputs=[x])
    with pytest.raises(RuntimeError, match=r"reverse.*cuLaunchKernelEx"):
        y.cpu()


@pytest.mark.parametrize("architecture", ["own", "compute_80"])
def test_files(architecture: str, tmp_path: Path, device: torch.device) -> None:
    capability = compute_capability()
    architecture = f"sm_{capability}" if architecture == "own" else architecture
    x = torch.randn(500)
    made = cuda_kernel(SHARED, "reverse")
    made.save(tmp_path / "reverse.json", [architecture])
    (module,) = made.compile(architecture).values()
    (tmp_path / "reverse.bin").write_bytes(module)
    for name in ("reverse.json", "reverse.bin"):
        kernel = CudaKernel.from_file(tmp_path / name)
        (y,) = kernel[1, 128, 2000](x.to(device), 500, outputs=[x])
        assert torch.equal(y.cpu(), x.flip(0))


def test_many_launches_in_one_program(device: torch.device) -> None:
    kernel = axpy(cuda_kernel)
    x, y = torch.randn(1000), torch.randn(1000)
    on_device, total, expected = y.to(device), x.to(device), x
    for _ in range(32):
        (total,) = kernel(total, on_device, 0.5)
        expected = 0.5 * expected + y
    torch.testing.assert_close(total.cpu(), expected)


def test_many_launches_are_one_cuda_graph(tmp_path: Path) -> None:
    """Like test_many_launches_in_one_program, in a process in which XLA dumps its programs."""
    code = (
        "import torch, cuda_kernel_test as test\n"
        'test.test_many_launches_in_one_program(torch.device("xla"))\n'
    )
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
        "XLA_FLAGS": f"--xla_dump_to={tmp_path} {os.environ.get('XLA_FLAGS', '')}",
    }
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    # XLA writes what the program runs before and, if it changes that, after its passes.
    texts = [file.read_text() for file in tmp_path.glob("*.thunk_sequence*.txt")]
    counts = [(text.count("kCustomCall"), text.count("kCommandBuffer")) for text in texts]
    assert any(launches >= 32 and graphs == 1 for launches, graphs in counts), counts


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA")
def test_cuda_tensors() -> None:
    operator = torch_xla_ext.define_operator(
        "gpu_cuda_kernel::axpy(Tensor x, Tensor y, float a) -> Tensor", target=axpy(cuda_kernel)
    )
    x, y = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
    torch.testing.assert_close(operator(x, y, 2.0), 2 * x + y)
