"""Measures the paged attention operators through XLA on a GPU. A step is one call.

    PJRT_DEVICE=CUDA python benchmarks/paged_attention_xla.py --json out.json

The cases are those of paged_attention.py, which measures the kernels without XLA. For each case:

- "profile": how long the device was busy in a step, from the profiler, with a list of what ran and
  its time. A kernel can start while the one before it still runs. A copy of the cache would show.
- "slope": device time of a call without the profiler: the time of a program of many calls minus
  that of one with half as many, divided by the difference in calls. Measured with --slope, or if
  there is no profile.
- "in flight": time per step if the host does not wait for results.
- "host": how long the host is busy with a step: tracing, looking up the program, starting it. This
  uses one set of inputs, because each live tensor costs torch_xla a quarter of a microsecond.

At the end the cache is updated for 1,000 steps, and device memory is compared.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import paged_attention_cases as cases
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import xplane
from paged_attention_cases import SCALE, Case, Inputs, Update
from torch_xla.debug import metrics, profiler

import torch_xla_ext  # noqa: F401  # registers torch.ops.xla_gpu

TINY_CASES = [cases.decode(3, 100), cases.prefill(2, 48), cases.Case("mixed", (40, 1), (40, 33))]
Call = Callable[[], object]


def paged(inputs: Inputs) -> torch.Tensor:
    caches = inputs.key_cache, inputs.value_cache
    return torch.ops.xla_gpu.paged_attention(
        inputs.q, *caches, inputs.tables, inputs.kv_lens, SCALE
    )


def ragged(inputs: Inputs) -> torch.Tensor:
    return torch.ops.xla_gpu.ragged_paged_attention(
        inputs.q,
        inputs.kv_pages,
        inputs.kv_lens,
        inputs.tables,
        inputs.cu_q_lens,
        inputs.num_seqs,
        sm_scale=SCALE,
    )


def update_split(update: Update) -> None:
    caches = update.inputs.key_cache, update.inputs.value_cache
    torch.ops.xla_gpu.kv_cache_update(update.key, update.value, update.slots, *caches)


def update_pages(update: Update) -> None:
    pages = update.inputs.kv_pages
    torch.ops.xla_gpu.kv_pages_update(update.key, update.value, update.slots, pages)


@dataclass
class Row:
    """The times of a step, in microseconds."""

    case: str
    name: str
    profile: float | None
    slope: float | None
    in_flight: float
    host: float
    terabytes: float  # each second, by the profile or else by the slope
    teraflops: float
    error: float | None
    compilations: int  # in all timed steps of one call
    kernels: dict[str, tuple[int, float]] = field(default_factory=dict)

    def text(self) -> str:
        profile = "        -" if self.profile is None else f"{self.profile:9.1f}"
        slope = "        -" if self.slope is None else f"{self.slope:9.1f}"
        error = "" if self.error is None else f"  error {self.error:.1e}"
        return (
            f"{self.case:<31} {self.name:<23} profile {profile} us  slope {slope}  "
            f"in flight {self.in_flight:8.1f}  host {self.host:6.1f}  {self.terabytes:5.2f} TB/s  "
            f"{self.teraflops:4.0f} TFLOP/s  {self.compilations} compilations{error}"
        )


def compilations() -> int:
    data = metrics.metric_data("CompileTime")
    return data[0] if data else 0


def step(calls: Sequence[Call]) -> None:
    results = [call() for call in calls]  # they live until the step has been launched
    torch_xla.sync()
    del results


def in_flight(programs: Sequence[Sequence[Call]], steps: int, repeats: int = 3) -> float:
    """Microseconds of a step, the median of `repeats` blocks of `steps`."""
    times = []
    for repeat in range(repeats + 1):
        xm.wait_device_ops()
        begin = time.perf_counter()
        for number in range(steps):
            step(programs[number % len(programs)])
        xm.wait_device_ops()
        if repeat > 0:  # the first compiles
            times.append((time.perf_counter() - begin) / steps * 1e6)
    return statistics.median(times)


def host(call: Call, steps: int) -> float:
    """Microseconds until a step has been launched on an idle device, the median."""
    in_flight([[call]], steps, 1)
    times = []
    for _ in range(steps):
        xm.wait_device_ops()
        begin = time.perf_counter()
        step([call])
        times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times)


def make_calls(
    function: Callable, make: Callable[[], Inputs | Update], count: int, steps: int
) -> tuple[list[partial], float]:
    """Calls with inputs of their own; and the host's time of the first, before there are others."""
    calls, busy = [], 0.0
    for number in range(count):
        calls.append(partial(function, make()))
        torch_xla.sync()
        if number == 0:
            busy = host(calls[0], steps)
    return calls, busy


def profile(calls: Sequence[Call], steps: int) -> list[xplane.Event]:
    """What ran on the GPU in steps of one call; nothing if the profiler does not see it."""
    with tempfile.TemporaryDirectory() as folder:
        xm.wait_device_ops()
        profiler.start_trace(folder)
        for number in range(steps):
            step([calls[number % len(calls)]])
        xm.wait_device_ops()
        profiler.stop_trace()
        (path,) = Path(folder).rglob("*.xplane.pb")
        print("profiled planes:", ", ".join(xplane.plane_names(path)))
        return xplane.device_events(path)


def measure(
    case: Case,
    name: str,
    calls: list[Call],
    busy: float,
    args: argparse.Namespace,
    error: float | None,
) -> Row:
    """Times `calls`, of which each has inputs of its own; `busy` is the time of the host."""
    half = len(calls) // 2
    single = [[call] for call in calls]
    in_flight(single, len(calls), 1)
    compiled = compilations()
    one = in_flight(single, args.steps)
    compiled = compilations() - compiled
    events: list[xplane.Event] = []
    if not args.no_profile:
        try:
            events = profile(calls, args.steps)
        except Exception as failure:
            print(f"no profile: {failure}")
    on_device = xplane.busy_microseconds(events) / args.steps if events else None
    slope = None
    if args.slope or on_device is None:
        steps = max(args.steps // half, 4)
        all_of_them, some = in_flight([calls], steps), in_flight([calls[:half]], steps)
        slope = (all_of_them - some) / (len(calls) - half)
    best = on_device or slope
    moved = case.bytes if error is not None else cases.UPDATE_BYTES
    flops = case.flops if error is not None else 0
    rates = moved / best / 1e6, flops / best / 1e6
    kernels = xplane.kernel_times(events)
    return Row(case.name, name, on_device, slope, one, busy, *rates, error, compiled, kernels)


def show(row: Row) -> Row:
    print(row.text(), flush=True)
    for kernel, (count, total) in sorted(row.kernels.items(), key=lambda item: -item[1][1])[:4]:
        print(f"    {count:5} x {total / count:8.1f} us  {kernel[:90]}")
    return row


def run_attention(case: Case, args: argparse.Namespace) -> list[Row]:
    rows = []
    half = max(2, int(300e6 // case.bytes) + 1) if not args.tiny else 2
    functions = [("ragged_paged_attention", ragged, "pages")]
    if case.kind == "decode":
        functions.insert(0, ("paged_attention", paged, "split"))
    for name, function, layout in functions:
        make = partial(cases.make_inputs, case, torch_xla.device(), layout)
        calls, busy = make_calls(function, make, 2 * half, args.steps)
        inputs = calls[0].args[0]
        error = cases.error(case, inputs, function(inputs).cpu())
        rows.append(show(measure(case, name, calls, busy, args, error)))
    return rows


def run_updates(args: argparse.Namespace) -> list[Row]:
    rows = []
    case = cases.decode(2, 1152) if args.tiny else cases.UPDATE_CASE
    half = 2 if args.tiny else int(300e6 // cases.UPDATE_BYTES) + 1
    functions = [
        ("kv_cache_update", update_split, "split"),
        ("kv_pages_update", update_pages, "pages"),
    ]
    for name, function, layout in functions:
        make = partial(cases.make_update, torch_xla.device(), layout, case)
        calls, busy = make_calls(function, make, 2 * half, args.steps)
        row = measure(case, name, calls, busy, args, None)
        row.case = f"update {len(calls[0].args[0].slots)} tokens"
        rows.append(show(row))
        check_memory(name, calls[0])
    return rows


def check_memory(name: str, call: Call) -> None:
    """Prints the device's memory in use before and after 1,000 steps."""

    def used() -> object:
        xm.wait_device_ops()
        try:
            return xm.get_memory_info(torch_xla.device())
        except RuntimeError as failure:
            return f"not known: {failure}".splitlines()[0]

    step([call])
    before = used()
    for _ in range(1000):
        step([call])
    print(f"{name}: memory before 1,000 steps {before}\n{name}: and after them {used()}")


def save(rows: list[Row], path: str | None) -> None:
    if path:
        Path(path).write_text(json.dumps([asdict(row) for row in rows], indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE", help="write all measurements to a file")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    parser.add_argument("--steps", type=int, default=100, help="steps per block")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--slope", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="small cases, to try the script")
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    rows = []
    for case in TINY_CASES if args.tiny else cases.CASES:
        if args.only in case.name:
            rows += run_attention(case, args)
            save(rows, args.json)
    if args.only in "update":
        rows += run_updates(args)
        save(rows, args.json)
    print("", *(row.text() for row in rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
