"""Measure the host time of a captured step with many small tensors, on 1, 2 and 4 devices.

    PJRT_DEVICE=CPU python benchmarks/replay_host_time.py
    PJRT_DEVICE=CUDA python benchmarks/replay_host_time.py --devices 4 --parameters 300

Each number of devices is measured in its own process. One device runs without SPMD; on several,
every second parameter is sharded and the others, the batch and the result are replicated. "reads"
is a step that reads all parameters and writes eight, as a decode step does; "writes" writes all of
them, as a training step does. Times are the 10th percentiles, in µs:

- cpu: processor time of the calling thread in a call of the step, while the devices are idle
- call: the time from the call to its return
- with a batch: the same, with a new batch that is sent to the device
- in flight: the time per step if calls follow each other without waiting
- read: the time to read the result after the step has ended
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

SIZE = 8  # rows and columns of a parameter
WRITTEN = 8  # parameters that the step "reads" writes to
IN_FLIGHT = 8


def microseconds(
    function: Callable[[], object],
    before: Callable[[], object],
    count: int,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    times = []
    for _ in range(count):
        before()
        begin = clock()
        function()
        times.append((clock() - begin) * 1e6)
    return statistics.quantiles(times, n=10)[0]


def measure(devices: int, parameters: int, writes: bool, rounds: int) -> None:
    import numpy as np
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.spmd as xs
    from torch_xla import runtime

    import torch_xla_ext

    device = torch_xla.device()
    state = [torch.full((SIZE, SIZE), i / parameters).to(device) for i in range(parameters)]
    if devices > 1:
        mesh = xs.Mesh(np.arange(devices), (devices,), ("x",))
        for i, tensor in enumerate(state):
            xs.mark_sharding(tensor, mesh, ("x", None) if i % 2 else (None, None))
    assert runtime.global_runtime_device_count() == devices

    @torch_xla_ext.capture(check_python=False)
    def step(batch: torch.Tensor) -> torch.Tensor:
        total = batch
        for i, tensor in enumerate(state):
            if writes or i < WRITTEN:
                tensor.mul_(0.5)
            if i % 2 == 0:
                total = total + tensor
            elif not writes and i >= WRITTEN:
                state[1].add_(tensor)
        return total

    host_batch = torch.ones(SIZE, SIZE)
    batch = host_batch.to(device)
    for _ in range(3):
        result = step(batch)
    wait = xm.wait_device_ops

    def calls() -> None:
        for _ in range(IN_FLIGHT):
            step(batch)
        wait()

    figures = {
        "cpu": microseconds(lambda: step(batch), wait, rounds, time.thread_time),
        "call": microseconds(lambda: step(batch), wait, rounds),
        "with a batch": microseconds(lambda: step(host_batch.to(device)), wait, rounds),
        "in flight": microseconds(calls, wait, rounds // 4) / IN_FLIGHT,
        "read": microseconds(lambda: result.cpu(), wait, rounds),
    }
    kind = "writes" if writes else "reads"
    text = ", ".join(f"{name} {value:8.0f}" for name, value in figures.items())
    print(f"{kind:6} {parameters:5} parameters, {devices} devices: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--parameters", type=int, nargs="+", default=[10, 300, 3000])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", default=["reads", "writes"])
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.here:
        for devices in args.devices:
            environment = {**os.environ, "CPU_NUM_DEVICES": str(devices)}
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(devices)))
            for kind in args.kinds:
                command = [sys.executable, "-P", __file__, "--here", "--kinds", kind]
                command += ["--devices", str(devices), "--rounds", str(args.rounds)]
                command += ["--parameters", *map(str, args.parameters)]
                subprocess.run(command, env=environment, check=True)
        return
    from torch_xla import runtime

    devices = args.devices[0]
    if devices > 1:
        runtime.use_spmd()
    for parameters in args.parameters:
        measure(devices, parameters, args.kinds[0] == "writes", args.rounds)


if __name__ == "__main__":
    main()
