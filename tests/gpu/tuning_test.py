"""Configurations of cuda_kernel are timed on a GPU, without the caller's data."""

import json
from pathlib import Path

import pytest
import torch
import torch_xla

import torch_xla_ext
from torch_xla_ext import CudaKernel, cuda_kernel, define_operator
from xla_kernels.cuda_source import cache

# The kernel waits by the clock; ptxas would remove arithmetic with a known result.
SOURCE = """
template <int kWork>
__global__ void add_to(float* state, const float* x, int n) {
  long long begin = clock64();
  while (clock64() - begin < 100 * kWork) {}
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) state[i] += x[i];
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path))
    return tmp_path / "tuned"


def made(configs: list[dict[str, int]]) -> CudaKernel:
    return cuda_kernel(
        SOURCE,
        "add_to<{WORK}>",
        signature="(state: F32[n], x: F32[n]) -> (state)",
        grid=lambda call: -(-call["n"] // 256),
        block=lambda call: call.get("BLOCK", 256) if call["WORK"] >= 0 else 5000,
        configs=configs,
    )


CONFIGS = [{"WORK": 3000}, {"WORK": 0}, {"WORK": 300}, {"WORK": -1}]


def test_the_fastest(folder: Path, device: torch.device, capfd: pytest.CaptureFixture[str]) -> None:
    state, x = torch.randn(100_000), torch.randn(100_000)
    on_device = state.to(device)
    (after,) = made(CONFIGS)(on_device, x.to(device))
    assert torch.equal(after.cpu(), state + x)  # once, however often it was timed
    assert torch.equal(on_device.cpu(), state)
    assert "WORK=0 takes" in capfd.readouterr().err
    (file,) = folder.iterdir()
    choice = json.loads(file.read_text())
    assert choice["config"] == 1
    times = {int(i): time for i, time in choice["milliseconds"].items()}
    assert set(times) == {0, 1, 2}  # the last one has too many threads
    assert times[1] < times[2] < times[0]
    made(CONFIGS)(on_device, x.to(device))
    assert not capfd.readouterr().err


def test_in_a_captured_step(device: torch.device, capfd: pytest.CaptureFixture[str]) -> None:
    define_operator(
        "tuning_gpu_test::add(Tensor state, Tensor x) -> Tensor", target=made(CONFIGS), replace=True
    )

    @torch_xla_ext.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.ops.tuning_gpu_test.add(x, x)
        return x

    x = torch.randn(5000)
    for _ in range(3):
        torch.testing.assert_close(step(x.to(device)).cpu(), x * 2**8)
    assert capfd.readouterr().err.count("WORK=0 takes") == 1


def test_a_large_array_and_compile(device: torch.device) -> None:
    kernel = made(CONFIGS)
    define_operator(
        "tuning_gpu_test::large(Tensor state, Tensor x) -> Tensor", target=kernel, replace=True
    )
    x = torch.randn(64 << 20, device=device)  # 256 MB
    torch_xla.sync()
    compiled = torch.compile(torch.ops.tuning_gpu_test.large, backend="openxla")
    torch.testing.assert_close(compiled(x, x), 2 * x)
