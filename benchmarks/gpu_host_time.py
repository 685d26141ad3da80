"""Compares the host time of a step with _xla_gpu_custom_call and with _xla_custom_call.

    PJRT_DEVICE=CUDA GPU_KERNELS=…/libgpu_kernels.so python benchmarks/gpu_host_time.py

The kernel is empty, so a step consists of tracing, looking up the program, and the call through
the bridge and the plugin. Both functions are measured in turns, in one process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch_xla
import torch_xla.core.xla_model as xm

from torch_xla_ext import register_cuda_custom_call

XLAC = torch_xla._XLAC


def block(step: Callable[[], object], count: int) -> tuple[float, float]:
    """Microseconds of tracing and of the whole step, means of `count` steps."""
    traced = 0.0
    xm.wait_device_ops()
    begin = time.perf_counter()
    for _ in range(count):
        start = time.perf_counter()
        result = step()  # lives until the step has been launched
        traced += time.perf_counter() - start
        torch_xla.sync()
        del result
        xm.wait_device_ops()
    return traced / count * 1e6, (time.perf_counter() - begin) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="steps per block")
    parser.add_argument("--blocks", type=int, default=21)
    args = parser.parse_args()
    register_cuda_custom_call("TestNothing", os.environ["GPU_KERNELS"])
    x = torch.randn(16).to(torch_xla.device())
    torch_xla.sync()
    shapes, dtypes = [[16]], [torch.float32]
    steps = {
        "_xla_custom_call": lambda: XLAC._xla_custom_call(
            [x], "TestNothing", shapes, dtypes, False, b"x", 3, {}
        ),
        "_xla_gpu_custom_call": lambda: XLAC._xla_gpu_custom_call(
            [x], b"x", shapes, dtypes, "TestNothing"
        ),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for step in steps.values():
        block(step, args.steps)
    for _ in range(args.blocks):
        for name, step in steps.items():
            times[name].append(block(step, args.steps))
    base = None
    for name, blocks in times.items():
        traced = statistics.median(t for t, _ in blocks)
        total = [t for _, t in blocks]
        median = statistics.median(total)
        base = base or median
        print(
            f"{name:<22} tracing {traced:6.1f} us, step {median:7.1f} us ({median / base:6.1%}; "
            f"min {min(total):.1f}, max {max(total):.1f})"
        )


if __name__ == "__main__":
    main()
