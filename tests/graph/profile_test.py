"""torch_xla_ext.profile: its table and trace, from events as XLA's profiler writes them."""

import gzip
import json
import sys
import types
from pathlib import Path

import pytest
import torch
import torch_xla
from torch_xla.debug import profiler

import torch_xla_ext
from torch_xla_ext import __main__ as command_line
from torch_xla_ext.tools.profiled_programs import custom_call_targets


def event(name: str, start: float, duration: float, **stats: object) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        name=name, start_ns=start, duration_ns=duration, stats=list(stats.items())
    )


def line(name: str, *events: types.SimpleNamespace) -> types.SimpleNamespace:
    return types.SimpleNamespace(name=name, events=list(events))


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch) -> list:
    """Replaces JAX's reader of profiles; the planes in this list are what it reads."""
    planes: list = []

    class ProfileData:
        @staticmethod
        def from_file(path: str) -> types.SimpleNamespace:
            assert Path(path).stat().st_size > 0
            return types.SimpleNamespace(planes=planes)

    module = types.ModuleType("jax")
    module.profiler = types.ModuleType("jax.profiler")
    module.profiler.ProfileData = ProfileData
    monkeypatch.setitem(sys.modules, "jax", module)
    monkeypatch.setitem(sys.modules, "jax.profiler", module.profiler)
    return planes


def test_on_a_gpu(jax: list, tmp_path: Path) -> None:
    jax += [
        types.SimpleNamespace(name="/host:CPU", lines=[line("python", event("x", 0, 9e9))]),
        types.SimpleNamespace(
            name="/device:GPU:0",
            lines=[
                line("XLA Ops", event("again", 1000, 4000, hlo_op="again")),
                line(
                    "Stream #1",
                    event("AddKernel", 1000, 2000),
                    event("AddKernel", 4000, 2000),
                    event("MemcpyD2D", 2500, 1000, memcpy_details="kind:D2D size:2000000 async:1"),
                    event("ncclDevKernel_AllReduce", 9000, 1000),
                ),
            ],
        ),
    ]
    with torch_xla_ext.profile() as measured:
        total = torch.ones(3, device="xla") + 1
        torch_xla.sync()
        assert total.tolist() == [2, 2, 2]
    rows = [row.split() for row in measured.table().splitlines()]
    assert ["AddKernel", "kernel", "2", "4.0", "66.7%"] in rows
    assert ["MemcpyD2D", "copy", "1", "1.0", "16.7%", "2.0"] in rows
    assert ["ncclDevKernel_AllReduce", "collective", "1", "1.0", "16.7%"] in rows
    assert measured.busy_microseconds() == 5.5
    assert measured.span_microseconds() == 9
    assert "waits for 3.5 us" in measured.table()
    assert measured.host["starting programs"][0] == 1
    measured.save(tmp_path / "trace.json.gz")
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert [e["ts"] for e in trace["traceEvents"] if e["ph"] == "X"] == [0, 1.5, 3, 8]


def test_compilations(jax: list) -> None:
    def step(size: int) -> None:
        assert torch.randn(size).to("xla").mul(0.25).cpu().shape == (size,)

    step(81)
    with torch_xla_ext.profile() as measured:
        step(81)
    assert "compiled:" not in measured.table()
    for sizes, text in [([82], "1 program was"), ([83, 84], "2 programs were")]:
        with torch_xla_ext.profile() as measured:
            for size in sizes:
                step(size)
        last = measured.table().splitlines()[-1]
        assert last == f"{text} compiled: see docs/performance.md, Compilations"


def test_custom_calls_by_target(jax: list, tmp_path: Path) -> None:
    """The events are made up; the program is in the file that XLA's profiler writes."""
    x, y = torch.randn(2, 1000, device="xla")
    step = torch_xla_ext.capture(lambda: torch.ops.xla_gpu.simple_add(x * 2, y).tanh())
    step()
    profiler.start_trace(str(tmp_path))
    step().cpu()
    profiler.stop_trace()
    (path,) = tmp_path.rglob("*.xplane.pb")
    targets = custom_call_targets(path.read_bytes())
    # On GPUs the file also has programs of earlier tests.
    operation = next(key for key, target in targets.items() if target == "XlaGpuSimpleAdd")
    module, program_id = operation[0].rstrip(")").split("(")
    program = {"hlo_module": module, "program_id": int(program_id)}
    call = program | {"hlo_op": operation[1]}
    events = [
        event("AddKernel", 1000, 1500, **call),
        event("AddKernel", 4000, 500, **call),
        event("loop_multiply", 5000, 1000, **program, hlo_op="loop_multiply"),
        event("OtherKernel", 7000, 1000, **call | {"program_id": 10**6}),
    ]
    jax.append(types.SimpleNamespace(name="/device:GPU:0", lines=[line("Stream #1", *events)]))
    with torch_xla_ext.profile() as measured:
        step()
    rows = [row.split() for row in measured.table().splitlines()]
    assert ["XlaGpuSimpleAdd", "2", "2.0", "50.0%"] in rows
    assert "CUDA graphs" not in measured.table()
    measured.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = [e["args"].get("target") for e in trace if e["ph"] == "X"]
    assert found == ["XlaGpuSimpleAdd", "XlaGpuSimpleAdd", None, None]
    events[:] = [event("AddKernel", 1000, 1500, **call | {"hlo_op": "graph"}, cuda_graph_id=1)]
    jax[0].lines[0].events = events
    with torch_xla_ext.profile() as measured:
        step()
    assert "custom calls by target" not in measured.table()
    assert "Kernels in CUDA graphs have no target: XLA_FLAGS" in measured.table()


def test_on_the_cpu_from_the_command_line(
    jax: list, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    jax.append(
        types.SimpleNamespace(
            name="/host:CPU",
            lines=[line("pool", event("dot.3", 0, 5000, hlo_op="dot.3"), event("other", 0, 1))],
        )
    )
    script = tmp_path / "script.py"
    script.write_text("import sys, torch; print('arguments', sys.argv[1:])\n")
    assert command_line.main(["profile", str(script), "--steps=3"]) == 0
    output = capsys.readouterr().out
    assert "arguments ['--steps=3']" in output
    assert "dot.3" in output
    assert "other" not in output


def test_without_jax(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setitem(sys.modules, "jax.profiler", None)
    with pytest.raises(ImportError, match="pip install jax"), torch_xla_ext.profile():
        pass
    assert command_line.main(["profile", str(tmp_path / "script.py")]) == 1
    assert "pip install jax" in capsys.readouterr().err
