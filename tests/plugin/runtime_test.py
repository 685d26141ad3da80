"""PJRT_DEVICE=CUDA in separate processes, on a machine without a GPU.

libfake_*.so stand in for the plugin, and a small libcuda.so.1 and libcudnn.so.9 for the driver's
library and cuDNN. `import torch_xla` takes nearly all the time, some seconds for each process. So
tests that need no separate process run in this one, and the processes of the machine with a GPU are
forks of a process that has imported it.
"""

import ast
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from testing.xla import XLAC, capsule

from torch_xla_ext import __main__ as commands
from torch_xla_ext.tools import doctor

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


def environment(**variables: str) -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PJRT_")} | variables


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python."""
    result = subprocess.run(
        [sys.executable, *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(result.stdout, result.stderr)
    return result


# Reads lines [file for the output, code, variables], forks for each of them, and prints the fork's
# exit status. The fork runs the code, and ends like any Python process.
FORKS = """
import json, os, sys
import torch_xla
for line in sys.stdin:
    output, code, variables = json.loads(line)
    if os.fork() == 0:
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    sys.exit()
os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), sys.stdout.fileno())
os.environ.update(variables)
exec(code)
"""


class Machine:
    """A machine with a driver and cuDNN."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        libraries = Path(os.environ["FAKE_DRIVER"].split()[0]).absolute().parent
        self._forks = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            env=environment(LD_LIBRARY_PATH=str(libraries)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, **variables: str) -> tuple[int, str]:
        """Runs Python code; returns its exit status and its output."""
        output = self._folder / "output"
        output.unlink(missing_ok=True)
        print(json.dumps([str(output), code, variables]), file=self._forks.stdin, flush=True)
        status = int(self._forks.stdout.readline())
        text = output.read_text()
        print(text)
        return status, text

    def close(self) -> None:
        self._forks.communicate(timeout=60)
        assert self._forks.returncode == 0


def plugin(kind: str) -> str:
    (path,) = [p for p in os.environ["FAKE_PLUGINS"].split() if p.endswith(f"libfake_{kind}.so")]
    return str(Path(path).absolute())


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    result = Machine(tmp_path_factory.mktemp("machine"))
    yield result
    result.close()


def test_no_driver() -> None:
    result = run("-c", TWICE, PJRT_DEVICE="CUDA")
    assert result.returncode == 0
    assert result.stdout.count("RAISED") == 2
    assert result.stdout.count("no NVIDIA driver") == 2
    assert "XlaGpuSimpleAdd" in result.stdout


def test_no_plugin(machine: Machine) -> None:
    status, output = machine.run(TWICE, PJRT_DEVICE="CUDA")
    assert status == 0
    assert output.count("pip install jax-cuda13-pjrt") == 2


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("older", "has PJRT API 0.69, but torch_xla 2.8.1 needs 0.70 or newer"),
        ("no_extension", "has no custom-call extension"),
        # The error of the plugin itself, when it creates its client.
        ("equal", "fake plugin: no client"),
        ("newer", "fake plugin: no client"),
    ],
)
def test_plugins(machine: Machine, kind: str, text: str) -> None:
    status, output = machine.run(TWICE, PJRT_DEVICE="CUDA", TORCH_XLA_EXT_PJRT_PLUGIN=plugin(kind))
    assert status == 0
    assert output.count(text) == 2


# Prints the calls of the fake plugin, behind the shim or at {path}.
PLUGIN = """
import ctypes, torch_xla
from testing.xla import capsule
from torch_xla.experimental import plugins
X = torch_xla._XLAC
class Plugin(plugins.DevicePlugin):
    def library_path(self):
        return {path!r} or X._xla_load_pjrt_plugin({plugin!r}) and X.__file__
plugins.register_plugin("CUDA", Plugin())
fake = ctypes.CDLL({plugin!r})
class Seen(ctypes.Structure):
    _fields_ = [("refusals", ctypes.c_int), ("executions", ctypes.c_int),
                ("options_size", ctypes.c_size_t), ("launch_id", ctypes.c_int),
                ("zero", ctypes.c_bool), ("fingerprints", ctypes.c_int),
                ("registrations", ctypes.c_int), ("last_target", ctypes.c_char * 64),
                ("last_functions", ctypes.c_void_p * 5), ("last_api", ctypes.c_int),
                ("last_traits", ctypes.c_uint32), ("probe_minor", ctypes.c_int),
                ("last_type", ctypes.c_char * 64), ("last_type_id", ctypes.c_int64),
                ("last_deleter", ctypes.c_void_p)]
fake.GetFakeObservations.restype = ctypes.POINTER(Seen)
seen = fake.GetFakeObservations().contents
"""

FORWARDED = """
X._xla_register_custom_call_target("early", capsule(4710), "CUDA")
print("before", seen.registrations)
X._xla_num_runtime_devices()
print("made", seen.registrations)
X._xla_num_runtime_devices()
print("again", seen.registrations)
X._xla_register_custom_call_target("late", capsule(4711), "CUDA")
print("late", seen.registrations, seen.last_target, seen.last_functions[3], seen.last_api)
X._xla_register_custom_call_target("late", capsule(4711), "CUDA")
X._xla_register_custom_call_target("typed", capsule(4712), "CUDA", api_version=1)
print("typed", seen.registrations, seen.last_api)
X._xla_register_custom_call_target("host", capsule(4713), "Host")
print("host", seen.registrations)
X._xla_register_custom_call_target("late", capsule(4712), "CUDA")
print("again", seen.registrations, seen.last_target, seen.last_functions[3])
try:
    X._xla_register_custom_call_target("refused", capsule(1), "CUDA")
except RuntimeError as error:
    print(type(error).__name__, error)
print(X._xla_registered_custom_call_targets("CUDA"))
print(X._xla_registered_custom_call_targets("CUDA", "ffi"), flush=True)
os._exit(0)  # torch_xla's own end asks for a device, and the fake client has none
"""


def run_with_plugin(machine: Machine, bridged: bool, code: str) -> list[str]:
    """The lines that the code prints after those of PLUGIN."""
    path = plugin("client" if bridged else "client_equal")
    code = (PLUGIN + code).format(plugin=path, path="" if bridged else path, **FILES)
    here = str(Path(__file__).parent.parent)
    status, output = machine.run(f"sys.path.insert(0, {here!r})\n{code}", PJRT_DEVICE="CUDA")
    assert status == 0
    return output.splitlines()


FILES = {"handlers": str(Path(os.environ["STATEFUL_HANDLERS"]).absolute())}


@pytest.mark.parametrize("bridged", [True, False])
def test_targets_reach_the_plugin(machine: Machine, bridged: bool) -> None:
    """Targets reach our plugin behind the shim, and a plugin that a user registers."""
    lines = run_with_plugin(machine, bridged, FORWARDED)
    assert lines[0] == "before 0"
    made = int(lines[1].split()[1])
    assert made >= 3
    assert lines[2] == f"again {made}"
    assert lines[3] == f"late {made + 1} b'late' 4711 0"
    assert lines[4] == f"typed {made + 2} 1"
    assert lines[5] == f"host {made + 2}"
    # XLA does not replace a function, so the second function of a name gets another name.
    assert lines[6] == f"again {made + 3} b'late#2' 4712"
    assert lines[7].startswith("RuntimeError the PJRT plugin refuses")
    untyped, typed = (ast.literal_eval(line) for line in lines[8:])
    assert {"XlaGpuSimpleAdd", "early", "late"} <= set(untyped) and "refused" not in untyped
    assert {"XlaGpuSimpleAdd", "typed"} <= set(typed)
    assert len(untyped) + len(typed) == made + 2


STAGES = """
import torch_xla_ext
library = ctypes.CDLL({handlers!r})
def address(symbol):
    return ctypes.cast(library[symbol], ctypes.c_void_p).value
def type_id():
    return ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_int64))(address("ScaleInStagesTypeId"))()[0]
functions = {{"instantiate": address("ScaleInstantiate"), "prepare": address("ScaleExecute") + 1,
             "initialize": address("ScaleExecute") + 2, "execute": address("ScaleExecute")}}
def given():
    # The handlers that the shim replaces by other functions.
    return [s for s, f in zip(functions, seen.last_functions) if f and f != functions[s]]
def register(name, stages, compatible):
    options = {{"api": "ffi", "command_buffer_compatible": compatible}}
    torch_xla_ext.register_custom_call(name, stages, **options)
# This process's XLA assigns an id, which is not the plug-in's.
torch_xla_ext.register_ffi_type("Plan", library.ScaleInStagesTypeId, platform="Host")
torch_xla_ext.register_ffi_type("Plan", library.ScaleInStagesTypeId)
print("type", type_id(), seen.last_type)
register("zz", functions, True)  # by their names, the last one
X._xla_num_runtime_devices()
print("type", type_id(), seen.last_type_id, seen.last_type, bool(seen.last_deleter))
print(seen.last_target, all(seen.last_functions[:4]), given(), seen.last_traits)
register("execute", {{"execute": functions["execute"]}}, False)
print(seen.last_target, seen.last_functions[:3], given(), seen.last_traits)
register("execute", {{"execute": functions["execute"]}}, True)
print(seen.last_target, seen.last_functions[:3], given(), seen.last_traits)
try:
    torch_xla_ext.register_ffi_type("Plan", capsule(ctypes.addressof(ctypes.c_int64())))
except ValueError as error:
    print(error)
os._exit(0 if sys.stdout.flush() is None else 1)
"""


@pytest.mark.parametrize("bridged", [True, False])
def test_stages_and_types_reach_the_plugin(machine: Machine, bridged: bool) -> None:
    """The plug-in behind the shim also receives traits and the deleters of types."""
    lines = run_with_plugin(machine, bridged, STAGES)
    assert lines[0] == "type 1 b''"
    assert lines[1] == f"type 100 0 b'Plan' {bridged}"
    # The handlers are of XLA FFI 0.1, whose form of states differs from that of newer plug-ins.
    adapted = ["instantiate", "prepare", "initialize", "execute"]
    assert lines[2] == f"b'zz' True {adapted} {int(bridged)}"
    assert lines[3] == "b'execute' [None, None, None] [] 0"
    adapted = [] if bridged else ["execute"]
    assert lines[4] == f"b'execute#2' [None, None, None] {adapted} {int(bridged)}"
    assert "register it under another name" in lines[5]


def test_unknown_api() -> None:
    text = "unknown api_version 2; known are 0, an untyped function"
    with pytest.raises(ValueError, match=text):
        XLAC._xla_register_custom_call_target("x", capsule(1), "CUDA", 2)


def test_import_without_a_gpu() -> None:
    code = (
        "import importlib, sys\n"
        "for name in ('torch_xla', 'torch_xla_ext'):\n"
        "    importlib.import_module(name)\n"
        "    print('xla_kernels.plugin.discovery' in sys.modules)"
    )
    result = run("-c", code, PJRT_DEVICE="CUDA")
    assert result.returncode == 0
    assert result.stdout == "False\nFalse\n"  # nothing looks at the machine


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

    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert commands.main(["doctor", "--device", "CPU"]) == 0
        output = capsys.readouterr().out
        assert output.endswith("all works\n")
        assert 'platform      "Host"' in output
        names = {target["name"] for target in doctor.targets()}
        assert f"targets       {len(names)}; python -m torch_xla_ext targets lists them" in output
        parts = [line for line in output.splitlines() if not line.startswith("  ")]
        assert len(parts) < 15

    def test_fixes(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert commands.main(["doctor", "--device", "CPU"]) == 0
        lines = capsys.readouterr().out.splitlines()
        count = len(doctor.fixes())
        heading = f"fixes         {count}; TORCH_XLA_EXT_WITHOUT_FIX=name leaves one out"
        rows = lines[lines.index(heading) + 1 :][:count]
        assert all(row.startswith("  ") and row.count(": ") >= 1 for row in rows)
        assert any("torch.Tensor.contiguous (strided_views): " in row for row in rows)

    def test_versions_that_no_fix_is_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert doctor.untested_versions() == []
        versions = {"torch": "2.8.0", "torch_xla": "2.8.1+gpucc2", "transformers": "6.1.0"}

        def version(name: str) -> str:
            if name not in versions:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(importlib.metadata, "version", version)
        text = next(text for text in doctor.untested_versions() if "generation" in text)
        assert text.startswith("transformers 6.1.0: fixes (generation, ")
        assert "are for 4.55 to 5.24" in text
        assert text.endswith('pip install "transformers>=4.55,<5.25"')

    def test_cuda_without_a_driver(self) -> None:
        result = run("-m", "torch_xla_ext", "doctor", "--json", PJRT_DEVICE="CUDA")
        assert result.returncode == 1
        report = json.loads(result.stdout)
        assert not report["ok"] and report["platform"] == "CUDA"
        assert "no NVIDIA driver" in report["problems"][0]

    def test_a_driver_means_cuda(self, machine: Machine) -> None:
        status, output = machine.run(
            "from torch_xla_ext.__main__ import main; sys.exit(main(['doctor']))"
        )
        assert status == 1
        assert "pip install jax-cuda13-pjrt" in output

    def test_a_plugin_that_makes_no_client(self, machine: Machine) -> None:
        status, output = machine.run(
            "from torch_xla_ext.__main__ import main; sys.exit(main(['doctor', '--json']))",
            TORCH_XLA_EXT_PJRT_PLUGIN=plugin("newer"),
        )
        assert status == 1
        report = json.loads(output)
        assert report["cuda"]["PJRT API"] == "0.120"
        assert report["cuda"]["cuDNN"] == "9.10.2"
        assert "fake plugin: no client" in " ".join(report["problems"])

    def test_targets(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert commands.main(["targets"]) == 0
        lines = capsys.readouterr().out.splitlines()
        for platform in ("CUDA", "Host"):
            for api in ("untyped", "ffi    "):
                assert [n for n in lines if n.startswith(f"{platform}  {api}  XlaGpuSimpleAdd ")]

    def test_no_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="2"):
            commands.main([])
        assert "COMMAND" in capsys.readouterr().err
