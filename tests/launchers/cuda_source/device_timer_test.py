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
    text = r"it failed with BLOCK=1024, and .*cuEventRecord: CUDA_ERROR_ILLEGAL_ADDR"
    with pytest.raises(RuntimeError, match=text):
        block_of_a_call(device, 64, 1024, 128)
    assert gpu.is_clean()
    assert not (folder / "tuned").exists()


def test_too_little_memory(
    gpu: FakeCuda, device: torch.device, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for free, text in (
        (200, "120 bytes free for F32[30]"),
        (1 << 20, "free for clearing its cache"),
    ):
        gpu.free = free  # for the operand, or for the result, too
        assert block_of_a_call(device, 5000, 32, 64) == 32  # the first that may be launched
        (record,) = (each for each in caplog.records if "without timing" in each.getMessage())
        assert "BLOCK=32, without timing any: the GPU has no " in record.getMessage()
        assert text in record.getMessage()
        caplog.clear()
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


def test_an_event_that_cannot_be_recorded(gpu: FakeCuda, device: torch.device) -> None:
    gpu.fails = {"cuEventRecord": 1}
    with pytest.raises(RuntimeError, match=r"none of its configurations .*cuEventRecord"):
        block_of_a_call(device, 32, 64)
    assert gpu.is_clean()


@pytest.mark.parametrize("l2_size", [4 << 20, 200 << 20])
def test_the_cache_is_cleared_before_each_launch(gpu: FakeCuda, l2_size: int) -> None:
    array, used, gpu.l2_size = ArrayType((256,), torch.bfloat16), set[tuple[int, ...]](), l2_size

    def launch(operands: list[int], results: list[int], stream: int) -> None:
        assert results[0] == operands[0]
        used.add((*operands, *results))
        gpu.launch(0.5)

    with device_timer.timer([array], [array, array], {0: 0}) as timer:
        assert timer.milliseconds(launch) == 0.5  # the memsets take longer
        launches = gpu.called.count("cuMemsetD8Async")
        assert gpu.called.count("cuEventRecord") == 2 * launches
        # A launch that loads the module, three for the number of the others, and 10 ms of them.
        assert launches == 1 + 3 + 20
    assert len(used) == 1
    assert gpu.is_clean()


def test_the_faster_half(gpu: FakeCuda) -> None:
    times = iter([9.0, 0.6, 0.5, 0.7, *[0.5, 1.0] * 10])
    with device_timer.timer([], [], {}) as timer:
        assert timer.milliseconds(lambda *_: gpu.launch(next(times))) == 0.5
    assert next(times, None) is None


def test_operands_of_small_floats(gpu: FakeCuda) -> None:
    for dtype in (torch.float4_e2m1fn_x2, torch.float8_e8m0fnu, torch.float8_e5m2):
        with device_timer.timer([ArrayType((64,), dtype)], [], {}):
            assert "cuMemcpyHtoD_v2" in gpu.called
        gpu.called.clear()
