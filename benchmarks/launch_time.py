"""Measure the host time of a kernel launch with `cuda_kernel`, and with Triton itself.

    PJRT_DEVICE=CUDA python benchmarks/launch_time.py  # with the wheel
    python benchmarks/launch_time.py --peer            # torch with CUDA, Triton

The kernel is axpy of a few floats. Each launch uses the previous result. Each time is for one
launch, a median over the rounds. "host" is the host's time to start the launches; "in flight"
includes the wait for the last one. In a program, the time is the difference between programs with
many and with few launches. The digest of the results' bits is the same for the same kernel on the
same numbers.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

SOURCE = """
extern "C" __global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
}
"""
BLOCK = 256
FACTOR = 0.5
# A function that starts work, and one that waits for all of it.
Step = Callable[[], object]
COUNTS = 32, 232  # numbers of launches in a short and in a long program


def numbers(size: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal(size, np.float32), random.standard_normal(size, np.float32)


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def times_of(step: Step, wait: Step, rounds: int, repeats: int) -> tuple[float, float]:
    """Return the microseconds of a step for the host and in flight, medians over the rounds."""
    host, all_of_it = [], []
    for turn in range(rounds + 3):
        wait()
        begin = time.perf_counter()
        for _ in range(repeats):
            step()
        started = time.perf_counter()
        wait()
        if turn >= 3:  # the first ones compile
            host.append((started - begin) / repeats * 1e6)
            all_of_it.append((time.perf_counter() - begin) / repeats * 1e6)
    return statistics.median(host), statistics.median(all_of_it)


def show(name: str, host: float, in_flight: float) -> None:
    print(f"{name:44} host {host:8.2f} µs, in flight {in_flight:8.2f} µs")
    sys.stdout.flush()


def show_launches(name: str, launches: Callable[[int], Step], wait: Step, rounds: int) -> None:
    """Print the time of launches that the host starts one by one."""
    many = COUNTS[1]
    show(name, *(t / many for t in times_of(launches(many), wait, rounds, 1)))


def show_program(name: str, program: Callable[[int], Step], wait: Step, rounds: int) -> None:
    """Print the time of a program's launches: the difference between many and few."""
    few, many = (times_of(program(count), wait, rounds, 4) for count in COUNTS)
    show(name, *((b - a) / (COUNTS[1] - COUNTS[0]) for a, b in zip(few, many, strict=True)))


def measure_xla(size: int, rounds: int) -> None:
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    import torch_xla_ext

    reference = None
    if torch_xla.device() and xm.xla_device_hw(torch_xla.device()) == "CPU":
        reference = lambda x, y, a, *n: a * x + y  # noqa: E731
    kernel = torch_xla_ext.cuda_kernel(SOURCE, "axpy", reference=reference)
    declared = torch_xla_ext.cuda_kernel(
        SOURCE,
        "axpy",
        signature="(x: F32[n], y: F32[n]) -> (out: F32[n])",
        parameters="a: f32",
        grid=lambda call: -(-call["n"] // BLOCK),
        block=BLOCK,
        reference=reference,
    )
    operator = torch_xla_ext.define_operator(
        "launch_time::axpy(Tensor x, Tensor y, float a) -> Tensor", target=declared
    )
    x, y = (torch.from_numpy(a).to(torch_xla.device()) for a in numbers(size))
    calls = {
        "kernel[grid, block](…)": lambda x, y: kernel[-(-x.numel() // BLOCK), BLOCK](
            x, y, FACTOR, x.numel(), outputs=[x]
        )[0],
        "kernel(…), with a signature": lambda x, y: declared(x, y, FACTOR)[0],
        "its operator": lambda x, y: operator(x, y, FACTOR),
    }
    torch_xla.sync(wait=True)
    for name, call in calls.items():
        print(f"{name:44} digest {digest(call(x, y).cpu().numpy())}")

        def chain(x: torch.Tensor, y: torch.Tensor, count: int, call: Callable = call) -> object:
            for _ in range(count):
                x = call(x, y)
            return x

        traced: list[float] = []
        for _ in range(rounds + 3):
            begin = time.perf_counter()
            result = chain(x, y, COUNTS[0])
            traced.append((time.perf_counter() - begin) / COUNTS[0] * 1e6)
            torch_xla.sync(wait=True)
            del result
        print(f"{name + ': traced':44} host {statistics.median(traced[3:]):8.2f} µs")

        def lazy(count: int, chain: Callable = chain) -> Step:
            def step() -> object:
                result = chain(x, y, count)
                torch_xla.sync()
                return result

            return step

        show_program(f"{name}: a lazy step", lazy, xm.wait_device_ops, rounds)

    def captured(x: torch.Tensor, y: torch.Tensor, call: Callable) -> Callable[[int], Step]:
        def program(count: int) -> Step:
            def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                for _ in range(count):
                    x = call(x, y)
                return x

            step = torch_xla_ext.capture(chain)
            return lambda: step(x, y)

        return program

    call = calls["kernel(…), with a signature"]
    show_program("a captured step", captured(x, y, call), xm.wait_device_ops, rounds)


def measure_peer(size: int, rounds: int) -> None:
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def axpy(x_ptr, y_ptr, out_ptr, a, n, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202, N803
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = offsets < n
        x = tl.load(x_ptr + offsets, mask=inside)
        y = tl.load(y_ptr + offsets, mask=inside)
        tl.store(out_ptr + offsets, a * x + y, mask=inside)

    def triton_launch(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        n = x.numel()
        axpy[(-(-n // BLOCK),)](x, y, out, FACTOR, n, BLOCK=BLOCK)

    x, y = (torch.from_numpy(a).cuda() for a in numbers(size))
    buffers = torch.empty_like(x), torch.empty_like(x)

    def chain(count: int) -> Step:
        def step() -> None:
            given = x
            for number in range(count):
                triton_launch(given, y, buffers[number % 2])
                given = buffers[number % 2]

        return step

    def graph(count: int) -> Step:
        step = chain(count)
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return graph.replay

    triton_launch(x, y, buffers[0])
    print(f"Triton: digest {digest(buffers[0].cpu().numpy())}")
    show_launches("Triton's own launch", chain, torch.cuda.synchronize, rounds)
    show_program("Triton, torch's CUDA graph", graph, torch.cuda.synchronize, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", action="store_true", help="Triton's own launch")
    parser.add_argument("--size", type=int, default=1000, help="floats")
    parser.add_argument("--rounds", type=int, default=31)
    args = parser.parse_args()
    (measure_peer if args.peer else measure_xla)(args.size, args.rounds)


if __name__ == "__main__":
    main()
