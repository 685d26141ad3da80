"""Configurations are timed with a driver in Python, which simulates a device's errors."""

import logging
from pathlib import Path

import pytest
import torch
from testing.fake_cuda import FakeCuda, fake_cuda

from cuda_source.sources import SQUARE, attributes
from torch_xla_ext import cuda_kernel
from torch_xla_ext.front_end import TorchXla
from xla_kernels import ArrayType
from xla_kernels.cuda_source import device_timer
from xla_kernels.launch import Launch

__all__ = ["fake_cuda"]
# A kernel's milliseconds by its block; -1: it fails while it runs. Other blocks are refused.
TIMES = {32: 0.3, 64: 0.002, 128: 0.01, 1024: -1}


@pytest.fixture
def gpu(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, on_a_gpu: None) -> FakeCuda:
    def launch_now(
        launch: Launch, words: object, operands: object, results: object, stream: int
    ) -> None:
        assert fake_cuda.stack == [0x100]  # the context of GPU 0
        assert all(address in fake_cuda.allocated for address in (*operands, *results))
        if launch.block[0] not in TIMES:
            raise RuntimeError("cuLaunchKernelEx: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
        fake_cuda.launch(TIMES[launch.block[0]])

    monkeypatch.setattr(TorchXla, "launch_now", staticmethod(launch_now))
    return fake_cuda


def block_of_a_call(device: torch.device, *blocks: int) -> int:
    kernel = cuda_kernel(
        SQUARE,
        "square",
        signature="(x: F32[n]) -> (out: F32[n])",
        grid=1,
        block=lambda call: call["BLOCK"],
        # A list, which cannot be hashed.
        cluster=[1],
        configs=[{"BLOCK": block} for block in blocks],
    )
    (out,) = kernel(torch.ones(30, device=device))
    return int(attributes(out)["block"].removeprefix("array<i32: ").partition(",")[0])


def test_the_fastest(
    gpu: FakeCuda, device: torch.device, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # One block has too many threads for any launch, and the driver refuses another one.
    assert block_of_a_call(device, 32, 5000, 128, 512, 64) == 64
    assert gpu.is_clean()
    error = capfd.readouterr().err
    assert (
        "cuda_kernel 'square': BLOCK=64 takes 0.002 ms for F32[30] on NVIDIA Fake 0; the slowest "
        "of 3 configurations takes 0.3 ms" in error
    )
    assert len(list((folder / "tuned").iterdir())) == 1


def test_left_out(gpu: FakeCuda, device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    assert block_of_a_call(device, 5000, 512, 64) == 64
    assert [record.getMessage().partition(" is skipped")[0] for record in caplog.records] == [
        "cuda_kernel 'square': BLOCK=5000",
        "cuda_kernel 'square': BLOCK=512",
    ]
    with pytest.raises(RuntimeError, match=r"can be launched: .*block must have 1 to 1024"):
        block_of_a_call(device, 5000, 512)
    assert gpu.is_clean()


def test_a_kernel_that_fails(gpu: FakeCuda, device: torch.device, folder: Path) -> None:
    text = r"it failed with BLOCK=1024, and .*cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDR"
    with pytest.raises(RuntimeError, match=text):
        block_of_a_call(device, 64, 1024, 128)
    assert gpu.is_clean()
    assert not (folder / "tuned").exists()


def test_too_little_memory(
    gpu: FakeCuda, device: torch.device, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.free = 200  # for the operand, but not for the result, too
    assert block_of_a_call(device, 5000, 32, 64) == 32  # the first that may be launched
    assert "BLOCK=32, without timing any: the GPU has no 120 bytes free" in caplog.text
    assert gpu.is_clean()
    assert not (folder / "tuned").exists()


def test_a_front_end_that_launches_nothing(
    gpu: FakeCuda,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.delattr(TorchXla, "launch_now")
    assert block_of_a_call(device, 32, 64) == 32
    assert (
        "BLOCK=32, without timing any: torch_xla_ext launches kernels only in XLA's" in caplog.text
    )
    assert gpu.is_clean()


def test_a_graph_that_cannot_be_made(gpu: FakeCuda, device: torch.device) -> None:
    gpu.fails = {"cuGraphInstantiateWithFlags": 1}
    with pytest.raises(RuntimeError, match=r"none of its configurations .*cuGraphInstantiate"):
        block_of_a_call(device, 32, 64)
    assert gpu.is_clean()


def test_launches_rotate_through_the_copies(gpu: FakeCuda) -> None:
    array, used = ArrayType((256,), torch.bfloat16), []

    def launch(operands: list[int], results: list[int], stream: int) -> None:
        assert results[0] == operands[0]
        used.append((*operands, *results))
        gpu.launch(0.5)

    with device_timer.timer([array], [array, array], {0: 0}) as timer:
        assert timer.milliseconds(launch) == 0.5
    # Twice as much as the cache of 4096 bytes.
    assert len(set(used)) == 6
    assert used[1:7] == used[7:13]
    assert gpu.is_clean()


def test_operands_of_small_floats(gpu: FakeCuda) -> None:
    for dtype in (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu, torch.float8_e5m2):
        with device_timer.timer([ArrayType((64,), dtype)], [], {}):
            assert "cuMemcpyHtoD_v2" in gpu.called
        gpu.called.clear()
