"""Profile a few steps, and show a table: ``with torch_xla_ext.profile() as p: …``, `p.table()`."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import tempfile
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any

import torch_xla.core.xla_model as xm
from torch_xla.debug import metrics, profiler

from torch_xla_ext.tools.profiled_programs import custom_call_targets

# Kinds of host work by the metrics that measure them, in nanoseconds.
_HOST = {
    "tracing operations": "LazyTracing",
    "compiling": "CompileTime",
    "starting programs": "ExecuteTime",
    "copies to the device": "TransferToDeviceTime",
    "copies from the device": "TransferFromDeviceTime",
    "waiting for the device's lock": "DeviceLockWait",
}
_COPY = re.compile(r"^(Memcpy|MemcpyD2D|MemcpyH2D|MemcpyD2H|memcpy|Memset)", re.IGNORECASE)
_COLLECTIVE = re.compile(
    r"nccl|all-?(reduce|gather|to-all)|reduce-?scatter|collective", re.IGNORECASE
)
_BYTES = re.compile(r"(?:num_bytes|size):(\d+)")


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that ran on the device; times in nanoseconds."""

    name: str
    stream: str
    begin: float
    duration: float
    kind: str  # "kernel", "copy" or "collective"
    num_bytes: int = 0
    target: str = ""  # of the custom call that started it
    in_graph: bool = False  # started by a CUDA graph, whose operations XLA does not report

    @property
    def end(self) -> float:
        return self.begin + self.duration


class Profile:
    """The events on the device and on the host while profiling.

    Attributes:
        events: the device's events in order of time. On the CPU these are XLA's operations.
        host: microseconds and count of torch_xla's work on the host, by kind.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.host: dict[str, tuple[int, float]] = {}
        self._folder: tempfile.TemporaryDirectory | None = None

    def __enter__(self) -> Profile:
        _profile_data()  # before anything has run
        xm.wait_device_ops()
        self._folder = tempfile.TemporaryDirectory()
        self._before = _host_times()
        profiler.start_trace(self._folder.name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        xm.wait_device_ops()
        profiler.stop_trace()
        after = _host_times()
        self.host = {
            name: (count - self._before[name][0], (time - self._before[name][1]) / 1e3)
            for name, (count, time) in after.items()
        }
        try:
            if kind is None:
                (path,) = Path(self._folder.name).rglob("*.xplane.pb")
                self.events = _read(path)
        finally:
            self._folder.cleanup()

    def table(self, limit: int = 25) -> str:
        """Return a table: kernels by time, the total, custom calls, host work and compilations."""
        groups: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in self.events:
            groups[event.kind, event.name].append(event)
        total = sum(event.duration for event in self.events) or 1.0
        ordered = sorted(groups.items(), key=lambda item: -sum(e.duration for e in item[1]))
        lines = [f"{'on the device':60} {'kind':10} {'calls':>7} {'us':>12} {'share':>7} {'MB':>9}"]
        for (kind, name), events in ordered[:limit]:
            time = sum(event.duration for event in events)
            size = sum(event.num_bytes for event in events) / 1e6
            lines.append(
                f"{_shorten(name, 60):60} {kind:10} {len(events):7} {time / 1e3:12.1f} "
                f"{time / total:7.1%} " + (f"{size:9.1f}" if size else "").rstrip()
            )
        if len(ordered) > limit:
            lines.append(f"… {len(ordered) - limit} more")
        busy, span = self.busy_microseconds(), self.span_microseconds()
        lines.append(
            f"device busy {busy:.1f} us of {span:.1f}; it waits for {max(span - busy, 0):.1f} us "
            "between its first and its last event"
        )
        lines += self._custom_calls(total)
        lines.append("")
        lines.append(f"{'on the host':60} {'calls':>18} {'us':>12}")
        for name, (count, time) in self.host.items():
            lines.append(f"{name:60} {count:18} {time:12.1f}")
        compiled, _ = self.host.get("compiling", (0, 0.0))
        if compiled:
            programs = "1 program was" if compiled == 1 else f"{compiled} programs were"
            lines += ["", f"{programs} compiled: see docs/performance.md, Compilations"]
        return "\n".join(lines)

    def _custom_calls(self, total: float) -> list[str]:
        """Return the lines of the table with custom calls by target."""
        groups: dict[str, list[float]] = defaultdict(list)
        for event in self.events:
            if event.target:
                groups[event.target].append(event.duration)
        lines = []
        if groups:
            lines += ["", f"{'custom calls by target':60} {'kernels':>18} {'us':>12} {'share':>7}"]
        for target, times in sorted(groups.items(), key=lambda item: -sum(item[1])):
            lines.append(
                f"{_shorten(target, 60):60} {len(times):18} {sum(times) / 1e3:12.1f} "
                f"{sum(times) / total:7.1%}"
            )
        if any(event.in_graph for event in self.events):
            lines += [
                "",
                "Kernels in CUDA graphs have no target: XLA_FLAGS=--xla_gpu_enable_command_buffer= "
                "runs without graphs",
            ]
        return lines

    def busy_microseconds(self) -> float:
        """Return the time during which at least one event ran."""
        busy, until = 0.0, 0.0
        for event in sorted(self.events, key=lambda event: event.begin):
            busy += max(event.end - max(event.begin, until), 0)
            until = max(event.end, until)
        return busy / 1e3

    def span_microseconds(self) -> float:
        """Return the time from the start of the first event to the end of the last."""
        if not self.events:
            return 0.0
        return (max(e.end for e in self.events) - min(e.begin for e in self.events)) / 1e3

    def save(self, path: str | Path) -> None:
        """Write a trace for https://ui.perfetto.dev, compressed if the path ends in .gz."""
        streams = {name: i for i, name in enumerate(sorted({e.stream for e in self.events}))}
        begin = min((event.begin for event in self.events), default=0.0)
        trace: list[dict[str, Any]] = [
            {"ph": "M", "pid": 0, "tid": i, "name": "thread_name", "args": {"name": name}}
            for name, i in streams.items()
        ]
        trace += [
            {
                "ph": "X",
                "pid": 0,
                "tid": streams[event.stream],
                "name": event.name,
                "cat": event.kind,
                "ts": (event.begin - begin) / 1e3,
                "dur": event.duration / 1e3,
                "args": {"target": event.target} if event.target else {},
            }
            for event in self.events
        ]
        data = json.dumps({"traceEvents": trace}).encode()
        Path(path).write_bytes(gzip.compress(data) if str(path).endswith(".gz") else data)


def profile() -> Profile:
    """Profile the body of a ``with`` statement.

    ::

        with torch_xla_ext.profile() as p:
            for _ in range(3):
                step()
        print(p.table())
        p.save("trace.json.gz")

    Raises:
        ImportError: jax is not installed; its ProfileData reads the files of XLA's profiler.
    """
    return Profile()


def _profile_data() -> Any:  # noqa: ANN401
    try:
        from jax.profiler import ProfileData
    except ImportError as error:
        raise ImportError(
            "torch_xla_ext.profile reads XLA's profile with jax.profiler.ProfileData, which is not "
            f"installed ({error}); pip install jax"
        ) from error
    return ProfileData


def _host_times() -> dict[str, tuple[int, float]]:
    times = {}
    for name, metric in _HOST.items():
        data = metrics.metric_data(metric)
        times[name] = (data[0], data[1]) if data else (0, 0.0)
    return times


def _read(path: Path) -> list[Event]:
    data = _profile_data().from_file(str(path))
    targets = custom_call_targets(path.read_bytes())
    planes = [plane for plane in data.planes if plane.name.startswith("/device:")]
    on_device = [
        plane for plane in planes if any(line.name.startswith("Stream") for line in plane.lines)
    ]
    events = []
    for plane in on_device or data.planes:
        for line in plane.lines:
            if on_device and not line.name.startswith("Stream"):
                continue  # lines that repeat the events by operation and by program
            for event in line.events:
                stats = {str(key): value for key, value in event.stats}
                if not on_device and "hlo_op" not in stats:
                    continue
                program = f"{stats.get('hlo_module')}({stats.get('program_id')})"
                target = targets.get((program, str(stats.get("hlo_op"))), "")
                events.append(_event(event, f"{plane.name} {line.name}", stats, target))
    return sorted(events, key=lambda event: event.begin)


def _event(event: Any, stream: str, stats: dict[str, Any], target: str) -> Event:  # noqa: ANN401
    size = _BYTES.search(str(stats.get("memcpy_details", "")))
    kind = "kernel"
    if _COLLECTIVE.search(event.name):
        kind = "collective"
    elif _COPY.search(event.name) or size:
        kind = "copy"
    return Event(
        event.name,
        stream,
        event.start_ns,
        event.duration_ns,
        kind,
        int(size[1]) if size else 0,
        target,
        "cuda_graph_id" in stats,
    )


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
