"""Configurations of a kernel: the choice, where it is stored, and errors.

Nothing is timed here: tests/gpu/tuning_test.py does that.
"""

import contextlib
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton_kernels
from testing.scripts import start_script

from cuda_source.sources import attributes
from torch_xla_ext import CudaKernel, cuda_kernel, define_operator, triton_call
from torch_xla_ext.front_end import TorchXla
from xla_kernels.cuda_source import device_timer, tuning
from xla_kernels.launch import Launch

SQUARE = """
template <int kBlock>
__global__ void __launch_bounds__(kBlock) square(const float* x, float* out, int n) {
  int i = blockIdx.x * kBlock + threadIdx.x;
  if (i < n) out[i] = x[i] * x[i];
}
"""
CONFIGS = [{"BLOCK": 64}, {"BLOCK": 128}, {"BLOCK": 256}]
on_a_gpu = pytest.mark.usefixtures("on_a_gpu")


def squares(source: str = SQUARE, name: str = "square<{BLOCK}>", **options: object) -> CudaKernel:
    given = {
        "signature": "(x: F32[n]) -> (out: F32[n])",
        "grid": lambda call: -(-call["n"] // call["BLOCK"]),
        "block": lambda call: call["BLOCK"],
        "configs": CONFIGS,
        "reference": lambda x: x * x,
    }
    return cuda_kernel(source, name, **{**given, **options})


class Device:
    """A device that computes nothing. Its times depend on the number of threads."""

    def __init__(self) -> None:
        self.times: dict[int, float] = {64: 3.0, 128: 1.0, 256: 2.0}
        self.launched: list[Launch] = []
        self.arrays: list[object] = []

    def launch_now(
        self, launch: Launch, words: object, operands: object, results: object, stream: int
    ) -> None:
        assert (operands, results, stream) == ([16], [32], 7)
        self.launched.append(launch)
        if launch.block[0] not in self.times:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE")

    @contextlib.contextmanager
    def timer(self, *arrays: object) -> Iterator[object]:
        self.arrays.append(arrays)
        yield self

    def milliseconds(self, launch: device_timer.Launcher) -> float:
        launch([16], [32], 7)
        return self.times[self.launched[-1].block[0]]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, on_a_gpu: None) -> Device:
    device = Device()
    monkeypatch.setattr(device_timer, "timer", device.timer)
    monkeypatch.setattr(device_timer, "device_name", lambda: "NVIDIA Test")
    monkeypatch.setattr(TorchXla, "launch_now", staticmethod(device.launch_now))
    return device


def block(*results: torch.Tensor) -> int:
    return int(attributes(*results)["block"].removeprefix("array<i32: ").partition(",")[0])


def test_the_fastest_is_chosen_once(
    gpu: Device, device: torch.device, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(300, device=device)
    kernel = squares()
    for _ in range(2):
        assert block(*kernel(x)) == 128
    assert attributes(*kernel(x))["grid"] == "array<i32: 3, 1, 1>"
    (arrays,) = gpu.arrays
    assert list(map(str, [*arrays[0], *arrays[1]])) == ["F32[300]", "F32[300]"]
    assert (
        "cuda_kernel 'square<{BLOCK}>': BLOCK=128 takes 1 ms for F32[300] on NVIDIA Test; the "
        in (error := capfd.readouterr().err)
    )
    assert "slowest of 3 configurations takes 3 ms" in error
    (file,) = (folder / "tuned").iterdir()
    assert json.loads(file.read_text())["config"] == 1
    # Another process, and the same call of an operator.
    gpu.launched.clear()
    assert block(*squares()(x)) == 128
    define_operator("tuning_test::square(Tensor x) -> Tensor", target=squares(), replace=True)
    assert block(torch.ops.tuning_test.square(x)) == 128
    assert not gpu.launched
    assert not capfd.readouterr().err
    # For other shapes, another configuration may be the fastest.
    gpu.times[256] = 0.5
    assert block(*kernel(torch.randn(301, device=device))) == 256
    file.write_text("damaged")
    assert block(*squares()(x)) == 256


def test_an_autotuned_triton_kernel(
    gpu: Device, device: torch.device, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(400, device=device)

    def call(kernel: object = triton_kernels.tuned) -> torch.Tensor:
        grid = lambda meta: (-(-400 // meta["BLOCK"]),)  # noqa: E731
        return triton_call(kernel, x, outputs=[x], n=400, grid=grid)[0]

    gpu.times = {128: 2.0, 256: 1.0}  # threads, of 4 warps and of 8
    for _ in range(2):
        assert block(call()) == 256
    assert attributes(call())["grid"] == "array<i32: 2, 1, 1>"
    (arrays,) = gpu.arrays
    assert list(map(str, [*arrays[0], *arrays[1]])) == ["F32[400]", "F32[400]"]
    assert "tuned: BLOCK=256, num_warps=8" in capfd.readouterr().err
    (file,) = (folder / "tuned").iterdir()
    assert json.loads(file.read_text())["config"] == 1
    # A configuration that does not compile is left out.
    configs = [triton.Config({"BLOCK": 3}), triton.Config({"BLOCK": 64})]
    assert block(call(triton.autotune(configs, ["n"])(triton_kernels.tuned.fn))) == 128
    with pytest.raises(RuntimeError, match=r"none of its conf.*CompilationError"):
        call(triton.autotune(configs[:1], ["n"])(triton_kernels.tuned.fn))


@pytest.mark.parametrize(
    "options",
    [
        {"source": SQUARE.replace("x[i] * x[i]", "x[i] + x[i]")},
        {"grid": lambda call: call["n"]},
        {"shared_bytes": 64},
        {"configs": CONFIGS[1:]},
        {"options": ["--use_fast_math"], "source": SQUARE.replace("x[i] * x[i]", "sinf(x[i])")},
    ],
)
def test_another_kernel_is_another_question(
    gpu: Device, device: torch.device, options: dict[str, object]
) -> None:
    x = torch.randn(300, device=device)
    squares()(x)
    gpu.launched.clear()
    squares(**options)(x)
    assert gpu.launched


def test_configurations_that_cannot_be_launched(gpu: Device, device: torch.device) -> None:
    x = torch.randn(300, device=device)
    del gpu.times[128]  # the driver refuses it
    configs = [
        *CONFIGS,
        {"BLOCK": 2048},
        {"BLOCK": -1},
    ]  # too many threads; an error of the compiler
    assert block(*squares(configs=configs)(x)) == 256
    gpu.times.clear()
    with pytest.raises(RuntimeError, match=r"none of its configurations can be launched: .*"):
        squares(configs=[{"BLOCK": -1}, {"BLOCK": -2}])(x)


def test_without_trying(gpu: Device, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tuning.VARIABLE, "0")
    assert block(*squares()(torch.randn(300, device=device))) == 64
    assert not gpu.launched


def test_macros(gpu: Device, device: torch.device, tmp_path: Path) -> None:
    text = SQUARE.replace("template <int kBlock>", "").replace("kBlock", "BLOCK")
    kernel = squares(text, "square")
    assert block(*kernel(torch.randn(300, device=device))) == 128
    modules = {variant.code.source.options for variant in kernel.calls.variants.all}
    assert modules == {("-DBLOCK=64",), ("-DBLOCK=128",), ("-DBLOCK=256",)}
    kernel.check()
    with pytest.raises(
        ValueError, match="a saved kernel has no macros: BLOCK of its configs must be"
    ):
        kernel.save(tmp_path / "kernel.json", ["sm_90a"])


def test_a_saved_kernel(gpu: Device, device: torch.device, tmp_path: Path) -> None:
    path = tmp_path / "kernel.json"
    squares().save(path, ["sm_90a"])
    kernel = CudaKernel.from_file(
        path,
        "square<{BLOCK}>",
        signature="(x: F32[n]) -> (out: F32[n])",
        grid=1,
        block=lambda call: call["BLOCK"],
        configs=CONFIGS,
    )
    assert block(*kernel(torch.randn(30, device=device))) == 128


def test_on_the_cpu(device: torch.device) -> None:
    kernel, x = squares(), torch.randn(300)
    assert torch.equal(kernel(x.to(device))[0].cpu(), x * x)
    kernel.check()
    with pytest.raises(ValueError, match="block must have 1 to 1024 threads"):
        squares(configs=[*CONFIGS, {"BLOCK": 2048}]).check()
    assert len(kernel.compile("sm_90a")) == 3


@pytest.mark.parametrize(
    ("configs", "error", "text"),
    [
        (
            [{"BLOCK": 1}, {"TILE": 1}],
            ValueError,
            "must have the same names, but have BLOCK and TILE",
        ),
        ([{"n": 1}], ValueError, "'n' must be a name that the signature does not have"),
        ([{"B B": 1}], ValueError, "'B B' must be a name"),
        ([{"BLOCK": 1.5}], TypeError, "BLOCK must be an int, bool or str, but is a float"),
        ({"BLOCK": 1}, TypeError, "configs must be a list of dicts, but is a dict"),
        ([1], TypeError, "must be dicts, but one is a int"),
    ],
)
def test_wrong_configs(configs: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        squares(configs=configs)


def test_without_a_signature() -> None:
    with pytest.raises(TypeError, match="configs require a signature"):
        cuda_kernel(SQUARE, "square<64>", configs=CONFIGS)


PROGRAM = """
import os
from torch_xla_ext.plugin import rendezvous
rendezvous.connect(os.environ)

def fail():
    raise ValueError("a failure")

rank = os.environ["RANK"]
answers = [rendezvous.agreed("first", lambda: f"of {rank}")]
try:
    rendezvous.agreed("second", fail)
except (RuntimeError, ValueError) as error:
    answers.append(str(error))
rendezvous.agreed("end", lambda: "")
print(*answers, sep="\\n")
"""


def test_processes_choose_the_same() -> None:
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    names = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    names |= {"XLA_COORDINATOR_PORT": str(port - 1)}  # the processes meet at the next one
    with contextlib.ExitStack() as files:
        out = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
        scripts = [
            start_script(PROGRAM, file, file, **names, RANK=str(rank), LOCAL_RANK=str(rank))
            for rank, file in enumerate(out)
        ]
        assert [script.wait(60) for script in scripts] == [0, 0]
        given = [file.seek(0) or file.read().splitlines()[-2:] for file in out]
    assert given[0][0] == given[1][0]
    assert given[0][0] in ("of 0", "of 1")
    failed = "the process that chooses for all has failed; see its error"
    assert sorted(answers[1] for answers in given) == ["a failure", failed]
