"""PJRT_DEVICE=CUDA in processes of their own, on a machine without a GPU.

libfake_*.so stand in for the plugin, and a small libcuda.so.1 and libcudnn.so.9 for the driver's
library and cuDNN.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Uses the client twice, and then the process ends.
TWICE = """
import torch_xla
for _ in range(2):
    try:
        torch_xla.device()
    except RuntimeError as error:
        print("RAISED", error)
print(torch_xla._XLAC._xla_registered_custom_call_targets("CUDA"))
"""


def run(
    *arguments: str, machine: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python; `machine` is a folder with libraries of a machine that has a GPU."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PJRT_")} | variables
    if machine is not None:
        environ["LD_LIBRARY_PATH"] = machine
    result = subprocess.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, timeout=300
    )
    print(result.stdout, result.stderr)
    return result


def plugin(kind: str) -> str:
    (path,) = [p for p in os.environ["FAKE_PLUGINS"].split() if p.endswith(f"libfake_{kind}.so")]
    return str(Path(path).absolute())


@pytest.fixture(scope="module")
def machine() -> str:
    return str(Path(os.environ["FAKE_DRIVER"].split()[0]).absolute().parent)


def test_no_driver() -> None:
    result = run("-c", TWICE, PJRT_DEVICE="CUDA")
    assert result.returncode == 0
    assert result.stdout.count("RAISED") == 2
    assert result.stdout.count("no NVIDIA driver") == 2
    assert "XlaGpuSimpleAdd" in result.stdout


def test_no_plugin(machine: str) -> None:
    result = run("-c", TWICE, machine=machine, PJRT_DEVICE="CUDA")
    assert result.returncode == 0
    assert result.stdout.count("pip install jax-cuda13-pjrt") == 2


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("older", "has PJRT API 0.69, but torch_xla 2.8.1 needs 0.70 or newer"),
        ("no_extension", "has no custom-call extension"),
        # What the plugin itself says when it makes its client.
        ("equal", "fake plugin: no client"),
        ("newer", "fake plugin: no client"),
    ],
)
def test_plugins(machine: str, kind: str, text: str) -> None:
    result = run(
        "-c", TWICE, machine=machine, PJRT_DEVICE="CUDA", TORCH_XLA_EXT_PJRT_PLUGIN=plugin(kind)
    )
    assert result.returncode == 0
    assert result.stdout.count(text) == 2


LATE = """
import ctypes, torch_xla
from testing.xla import capsule
X = torch_xla._XLAC
plugin = {plugin!r}
print(X._xla_load_pjrt_plugin(plugin))
fake = ctypes.CDLL(plugin)
class Seen(ctypes.Structure):
    _fields_ = [("refusals", ctypes.c_int), ("executions", ctypes.c_int),
                ("options_size", ctypes.c_size_t), ("launch_id", ctypes.c_int),
                ("zero", ctypes.c_bool), ("fingerprints", ctypes.c_int),
                ("registrations", ctypes.c_int), ("last_target", ctypes.c_char * 64),
                ("last_function", ctypes.c_void_p), ("last_api", ctypes.c_int)]
fake.GetFakeObservations.restype = ctypes.POINTER(Seen)
seen = fake.GetFakeObservations().contents
print("static", seen.registrations, seen.last_target)
X._xla_load_pjrt_plugin(plugin)
print("again", seen.registrations)
X._xla_register_custom_call_target("late", capsule(4711), "CUDA")
print("late", seen.registrations, seen.last_target, seen.last_function, seen.last_api)
X._xla_register_custom_call_target("typed", capsule(4712), "CUDA", api_version=1)
print("typed", seen.registrations, seen.last_api)
X._xla_register_custom_call_target("host", capsule(4713), "Host")
print("host", seen.registrations)
for name, function in (("late", 4712), ("refused", 1)):
    try:
        X._xla_register_custom_call_target(name, capsule(function), "CUDA")
    except (ValueError, RuntimeError) as error:
        print(type(error).__name__, error)
print(X._xla_registered_custom_call_targets("CUDA"))
print(X._xla_registered_custom_call_targets("CUDA", "ffi"))
"""


def test_targets_are_forwarded() -> None:
    here = Path(__file__).parent.parent
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    result = run("-c", LATE.format(plugin=plugin("equal")), PJRT_DEVICE="CUDA", PYTHONPATH=path)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "(0, 70)"
    static = int(lines[1].split()[1])
    assert static >= 1
    assert lines[2] == f"again {static}"
    assert lines[3] == f"late {static + 1} b'late' 4711 0"
    assert lines[4] == f"typed {static + 2} 1"
    assert lines[5] == f"host {static + 2}"
    assert lines[6].startswith('ValueError custom-call target "late" is registered for "CUDA"')
    assert lines[7].startswith("RuntimeError the PJRT plugin")
    assert "late" in lines[8] and "refused" not in lines[8]
    typed = ast.literal_eval(lines[9])
    assert {"XlaGpuSimpleAdd", "typed"} <= set(typed)
    assert len(typed) == static // 2 + 1  # each kernel of the wheel has an entry of both kinds


def test_unknown_api() -> None:
    code = (
        "import torch_xla; from testing.xla import capsule\n"
        "torch_xla._XLAC._xla_register_custom_call_target('x', capsule(1), 'CUDA', 2)"
    )
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    result = run("-c", code, PYTHONPATH=path)
    assert "ValueError: unknown api_version 2; known are 0, an untyped function" in result.stderr


@pytest.mark.parametrize("name", ["torch_xla", "torch_xla_ext"])
def test_import_without_a_gpu(name: str) -> None:
    code = f"import sys, {name}; print('torch_xla_ext.cuda.discovery' in sys.modules)"
    result = run("-c", code, PJRT_DEVICE="CUDA")
    assert result.returncode == 0
    assert result.stdout == "False\n"  # nothing looks at the machine


class TestDoctor:
    def test_cpu(self) -> None:
        result = run("-m", "torch_xla_ext", "doctor", "--json")
        assert result.returncode == 0
        report = json.loads(result.stdout)
        assert report["ok"] and report["device_type"] == "CPU" and report["platform"] == "Host"
        assert report["versions"]["torch_xla"].startswith("2.8.1+")
        assert report["self_test"] == {"xla:0": "simple_add works"}
        names = [(t["name"], t["platform"], t["api"]) for t in report["targets"]]
        assert ("XlaGpuSimpleAdd", "CUDA", "untyped") in names
        assert ("XlaGpuSimpleAdd", "Host", "untyped") in names
        assert not [n for n in names if n[0] in ("sinf", "__gnu_f2h_ieee")]  # XLA's own

    def test_text(self) -> None:
        result = run("-m", "torch_xla_ext", "doctor", "--device", "CPU")
        assert result.returncode == 0
        assert result.stdout.endswith("all works\n")
        assert 'platform      "Host"' in result.stdout

    def test_cuda_without_a_driver(self) -> None:
        result = run("-m", "torch_xla_ext", "doctor", "--json", PJRT_DEVICE="CUDA")
        assert result.returncode == 1
        report = json.loads(result.stdout)
        assert not report["ok"] and report["platform"] == "CUDA"
        assert "no NVIDIA driver" in report["problems"][0]

    def test_a_driver_means_cuda(self, machine: str) -> None:
        result = run("-m", "torch_xla_ext", "doctor", machine=machine)
        assert result.returncode == 1
        assert "pip install jax-cuda13-pjrt" in result.stdout

    def test_a_plugin_that_makes_no_client(self, machine: str) -> None:
        result = run(
            "-m",
            "torch_xla_ext",
            "doctor",
            "--json",
            machine=machine,
            TORCH_XLA_EXT_PJRT_PLUGIN=plugin("newer"),
        )
        assert result.returncode == 1
        report = json.loads(result.stdout)
        assert report["cuda"]["PJRT API"] == "0.120"
        assert report["cuda"]["cuDNN"] == "9.10.2"
        assert "fake plugin: no client" in " ".join(report["problems"])

    def test_targets(self) -> None:
        result = run("-m", "torch_xla_ext", "targets")
        assert result.returncode == 0
        assert "CUDA  untyped  XlaGpuSimpleAdd" in result.stdout.splitlines()
        assert "Host  untyped  XlaGpuSimpleAdd" in result.stdout.splitlines()

    def test_no_command(self) -> None:
        result = run("-m", "torch_xla_ext")
        assert result.returncode == 2
        assert "COMMAND" in result.stderr
