"""Time the CUDA kernels of skinny_linear without torch_xla or Bazel.

A plain script for a machine with a GPU, any torch with CUDA and the library that Bazel builds as
//benchmarks:libpaged_kernels.so:

    python kernels/skinny_linear/gpu_time.py LIBRARY

It calls the untyped entries, as XLA does, beside PyTorch's matmuls, in CUDA graphs whose weights
together exceed the L2 cache, for the layers of an 8B Llama on 1, 2 or 4 GPUs. The results are
compared with float64 by skinny_linear_test.py, which runs on a GPU, too.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from kernel_library import KernelLibrary, microseconds

ROTATED_BYTES = 800_000_000
MOST_CALLS = 40  # in a graph
HIDDEN, INNER, QKV = 4096, 14336, 6144


def swiglu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, up = functional.linear(x, w.flatten(0, 2)).chunk(2, dim=-1)
    return functional.silu(gate) * up


def layers(devices: int) -> dict[str, tuple[int, ...]]:
    """Return the weights of a layer on one of the devices."""
    return {
        "qkv": (QKV // devices, HIDDEN),
        "o": (HIDDEN, HIDDEN // devices),
        "gate and up": (1, 2, INNER // devices, HIDDEN),
        "down": (HIDDEN, INNER // devices),
    }


def call(library: KernelLibrary, x: torch.Tensor, w: torch.Tensor) -> Callable[[], None]:
    is_gated = w.dim() == 4
    shape = (x.shape[0], w.shape[0], w.shape[2]) if is_gated else (x.shape[0], w.shape[0])
    out = torch.empty(shape, dtype=x.dtype, device="cuda")
    target = "XlaGpuSkinnySwiglu" if is_gated else "XlaGpuSkinnyLinear"
    return library.bind(target, {"x": x, "w": w, "out": out}, {})


def time(library: KernelLibrary, rows: int, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the microseconds of the kernel and of PyTorch."""
    x = torch.randn(rows, shape[-1], device="cuda").bfloat16()
    count = min(MOST_CALLS, ROTATED_BYTES // (2 * math.prod(shape)))
    weights = torch.randn(count, *shape, device="cuda", dtype=torch.bfloat16) / shape[-1] ** 0.5
    peer = swiglu if len(shape) == 4 else functional.linear
    ways = [call(library, x, w) for w in weights], [lambda w=w: peer(x, w) for w in weights]
    ours, others = (min(microseconds(calls, repeats=6)) for calls in ways)
    return ours, others


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", type=Path)
    library = KernelLibrary(parser.parse_args().library)
    print("microseconds,", torch.cuda.get_device_name())
    for devices in (1, 2, 4):
        for rows in (1, 8, 16):
            totals = [0.0, 0.0]
            for name, shape in layers(devices).items():
                ours, peer = time(library, rows, shape)
                totals = [totals[0] + ours, totals[1] + peer]
                speed = 2e-6 * math.prod(shape) / ours
                print(
                    f"  {devices} devices, {rows} rows, {name}: ours {ours:.1f} ({speed:.2f} TB/s),"
                    f" torch {peer:.1f}"
                )
            print(f"{devices} devices, {rows} rows: ours {totals[0]:.1f}, torch {totals[1]:.1f}")


if __name__ == "__main__":
    main()
