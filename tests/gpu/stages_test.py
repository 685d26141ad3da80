"""FFI handlers with several stages and a state on a GPU: tests/gpu/stateful_handlers.cu."""

import ast
import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from testing.xla import capsule

import torch_xla_ext
from torch_xla_ext import register_custom_call, register_ffi_type, register_kernel

STAGES = ("instantiate", "prepare", "initialize", "execute")


def library() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["GPU_KERNELS"])


def counts() -> dict[str, int]:
    values = (ctypes.c_int64 * 5)()
    library().CountGpuCalls(values)
    return dict(zip((*STAGES, "destroyed"), values, strict=True))


def scale(target: str, x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch_xla_ext.custom_call(target, [x], [x], attributes={"scale": scale})[0]


def test_a_bundle_of_a_library(device: torch.device) -> None:
    assert register_kernel("GpuScale", os.environ["GPU_KERNELS"]) == [("GpuScale", "CUDA", "ffi")]
    before = counts()
    a = torch.randn(1000)
    x = a.to(device)
    for run in range(4):
        torch.testing.assert_close(scale("GpuScale", x, 3.0).cpu(), 3 * a + run)
    for run in range(2):  # another program has another state
        torch.testing.assert_close(scale("GpuScale", x, 5.0).cpu(), 5 * a + run)
    called = {name: count - before[name] for name, count in counts().items()}
    assert called["execute"] == 6
    assert called["instantiate"] >= 2
    assert called["prepare"] >= 6
    assert called["initialize"] >= 6


@pytest.mark.parametrize("given", ["capsules", "bundle"])
def test_registered_while_the_client_is_there(device: torch.device, given: str) -> None:
    torch.ones(1).to(device).cpu()
    functions = library()
    register_ffi_type("GpuPlan", functions.GpuScaleTypeId)
    symbols = (f"GpuScale{stage.capitalize()}" for stage in STAGES)
    addresses = (ctypes.cast(functions[s], ctypes.c_void_p).value for s in symbols)
    stages = {s: capsule(address) for s, address in zip(STAGES, addresses, strict=True)}
    functions.GpuScaleBundle.restype = ctypes.c_void_p
    handlers = stages if given == "capsules" else functions.GpuScaleBundle()
    register_custom_call(f"late {given}", handlers, api="ffi")
    a = torch.randn(100)
    x = a.to(device)
    for run in range(2):
        torch.testing.assert_close(scale(f"late {given}", x, 7.0).cpu(), 7 * a + run)


def test_an_error_of_instantiate(device: torch.device) -> None:
    register_kernel("GpuScale", os.environ["GPU_KERNELS"])
    x = torch.ones(3).to(device)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="GpuScale: scale must not be negative"):
            scale("GpuScale", x, -1.0).cpu()
    assert scale("GpuScale", x, 2.0).tolist() == [2, 2, 2]


def run(code: str, **variables: str) -> str:
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    result = subprocess.run(
        [sys.executable, "-P", "-c", f"import torch, stages_test as test\n{code}"],
        env=os.environ | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_states_are_destroyed_with_their_programs() -> None:
    output = run(
        """
test.register_kernel("GpuScale", test.os.environ["GPU_KERNELS"])
x = torch.ones(1, device="xla")
for number in range(4):
    assert test.scale("GpuScale", x, float(number)).tolist() == [number]
print(test.counts())
""",
        XLA_COMPILATION_CACHE_SIZE="1",
    )
    seen = ast.literal_eval(output.splitlines()[-1])
    assert seen["instantiate"] >= 4
    assert seen["destroyed"] >= 2


@pytest.mark.parametrize("compatible", [True, False])
def test_cuda_graphs(tmp_path: Path, compatible: bool) -> None:
    """The handler has no trait: its registration decides whether XLA captures its calls."""
    output = run(
        f"""
test.register_custom_call(
    "GpuScaleWithoutState",
    test.library(),
    api="ffi",
    command_buffer_compatible={compatible},
)
x = torch.ones(3, device="xla")
y = x
for number in range(12):
    y = test.scale("GpuScaleWithoutState", y, 2.0)
print(y.tolist())
""",
        XLA_FLAGS=f"--xla_dump_to={tmp_path} {os.environ.get('XLA_FLAGS', '')}",
    )
    assert output.splitlines()[-1] == str([2.0**12] * 3)
    # XLA writes the program's thunks before its passes and, if these change them, after.
    texts = [file.read_text() for file in tmp_path.glob("*.thunk_sequence*.txt")]
    calls = [text for text in texts if text.count("kCustomCall") >= 12]
    assert calls
    assert any("kCommandBuffer" in text for text in calls) == compatible
