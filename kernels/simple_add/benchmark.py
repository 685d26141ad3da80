"""Compares the bandwidth of simple_add, a device-to-device copy and XLA's own add on a GPU.

    PJRT_DEVICE=CUDA GPU_KERNELS=…/libgpu_kernels.so python kernels/simple_add/benchmark.py

Each program runs the operation on several sets of random operands, so that nothing stays in the
cache and host time is small compared to GPU time. Bytes are those read and written; the copy moves
as many.
"""

from __future__ import annotations

import argparse
import os
import statistics
import struct
import time
from collections.abc import Callable

import torch
import torch_xla
import torch_xla.core.xla_model as xm

from torch_xla_ext import register_cuda_custom_call
from torch_xla_ext.ops import simple_add

XLAC = torch_xla._XLAC


def copy(tensor: torch.Tensor) -> torch.Tensor:
    payload = struct.pack("<q", tensor.numel() * tensor.element_size())
    return XLAC._xla_gpu_custom_call(
        [tensor], payload, [tensor.shape], [tensor.dtype], target="TestMemcpy"
    )[0]


def seconds(step: Callable[[], list[torch.Tensor]], repeats: int, steps: int = 5) -> list[float]:
    """Times of one step: of `steps` steps back to back, `repeats` times, after a warm-up."""
    results = []
    for repeat in range(repeats + 2):
        xm.wait_device_ops()
        begin = time.perf_counter()
        for _ in range(steps):
            outputs = step()  # its results live until the step has been launched
            torch_xla.sync()
            del outputs
        xm.wait_device_ops()
        if repeat >= 2:
            results.append((time.perf_counter() - begin) / steps)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1 << 26, help="elements of each operand")
    parser.add_argument("--sets", type=int, default=16, help="number of operand pairs")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    register_cuda_custom_call("TestMemcpy", os.environ["GPU_KERNELS"])
    device = torch_xla.device()
    count, sets = args.elements, args.sets
    pairs = [[torch.randn(count, device=device) for _ in range(2)] for _ in range(sets)]
    # A copy moves two bytes for each byte of its operand, the addition three.
    copied = [torch.randn(count * 3 // 2, device=device) for _ in range(sets)]
    torch_xla.sync()
    operations = {
        "device-to-device copy": lambda: [copy(x) for x in copied],
        "simple_add": lambda: [simple_add(a, b) for a, b in pairs],
        "XLA's add": lambda: [a + b for a, b in pairs],
    }
    moved = 3 * 4 * count
    print(f"2 x {4 * count / 1e6:.0f} MB of float32, {sets} sets, {args.repeats} repeats")
    for turn in range(2):  # the spread between the turns is the noise
        ceiling = None
        for name, step in operations.items():
            times = [t / sets for t in seconds(step, args.repeats)]
            median = statistics.median(times)
            ceiling = ceiling or moved / median
            print(
                f"turn {turn}  {name:<22} {median * 1e6:8.1f} us  {moved / median / 1e12:6.3f} TB/s"
                f"  {moved / median / ceiling:6.1%} of the copy"
                f"  (min {min(times) * 1e6:.1f}, max {max(times) * 1e6:.1f} us)"
            )
    a, b = pairs[0]
    print("correct:", torch.equal(simple_add(a, b).cpu(), a.cpu() + b.cpu()))


if __name__ == "__main__":
    main()
