"""A target with the stage `record` on a GPU: tests/gpu/record_stage.cc.

It needs g++ and, for the stage, the headers of jaxlib 0.12 and a plug-in with XLA FFI 0.5.
"""

import ctypes
import importlib.util
import subprocess
from pathlib import Path

import pytest
import torch
import torch_xla

import torch_xla_ext
from torch_xla_ext import register_custom_call

SOURCE = Path(__file__).with_name("record_stage.cc")
CALLS = 8  # more than XLA wants for a command buffer


def compiled(library: Path, *options: str) -> ctypes.CDLL:
    command = ["g++", "-std=c++17", "-shared", "-fPIC", *options, str(SOURCE), "-ldl"]
    subprocess.run([*command, "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def execute(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("execute") / "libexecute.so"
    return compiled(library, "-isystem", torch_xla_ext.include_dir())


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    spec = importlib.util.find_spec("jaxlib")
    folders = spec.submodule_search_locations if spec is not None else []
    include = next((Path(folder, "include") for folder in folders), Path())
    if not (include / "xla/ffi/api/record_api.h").is_file():
        pytest.skip("jaxlib 0.12, whose headers have the stage, is not installed")
    library = tmp_path_factory.mktemp("record") / "librecord.so"
    return compiled(library, "-DRECORD", "-isystem", str(include))


def chained(target: str, x: torch.Tensor) -> torch.Tensor:
    for _ in range(CALLS):
        (x,) = torch_xla_ext.custom_call(target, [x], [x])
    return x


def expected(x: torch.Tensor) -> torch.Tensor:
    for _ in range(CALLS):
        x = 2 * x + 1
    return x


def test_execute(execute: ctypes.CDLL, device: torch.device) -> None:
    """Plug-ins before XLA FFI 0.5 call `execute`."""
    register_custom_call("Recorded", execute.Recorded, api="ffi")
    x = torch.randn(1000)
    torch.testing.assert_close(chained("Recorded", x.to(device)).cpu(), expected(x))


def test_record(execute: ctypes.CDLL, record: ctypes.CDLL, device: torch.device) -> None:
    functions = {"execute": execute.Recorded, "record": record.RecordedRecord}
    register_custom_call("Recording", functions, api="ffi")
    for run in range(4):  # XLA records a command buffer in the second run, at the latest
        x = torch.randn(1000) + run
        on_device = x.to(device)
        torch_xla.sync()
        torch.testing.assert_close(chained("Recording", on_device).cpu(), expected(x))
    if not record.RecordsCreated():
        pytest.skip("this plug-in has no stage `record`: it called execute")
    assert record.RecordsCreated() >= CALLS


def test_in_a_captured_step(
    execute: ctypes.CDLL, record: ctypes.CDLL, device: torch.device
) -> None:
    functions = {"execute": execute.Recorded, "record": record.RecordedRecord}
    register_custom_call("RecordingInAStep", functions, api="ffi")
    step = torch_xla_ext.capture(lambda x: chained("RecordingInAStep", x))
    for run in range(6):
        x = torch.randn(500) + run
        torch.testing.assert_close(step(x.to(device)).cpu(), expected(x))
