"""Measures calls of existing kernels in XLA programs and without XLA.

    PJRT_DEVICE=CUDA python benchmarks/existing_kernels.py [--tvm-ffi norm.so]
    python benchmarks/existing_kernels.py --peer  # Triton's own launch, with a CUDA build of torch

Programs of a few and of many calls are captured. Each call takes the result of the one before,
because XLA would merge equal calls. The time of a call is the difference of the programs' times
divided by the difference in calls. If torch has CUDA, its own calls of the same operator are
measured, too. With XLA_FLAGS=--xla_gpu_enable_command_buffer= there are no CUDA graphs, and the
result is the longer of host and device time. For the large array it is always the device's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import triton
import triton.language as tl

SHAPES = {"small": (16, 4096), "large": (16384, 4096)}
Step = Callable[[], object]


@triton.jit
def rms_norm(  # noqa: ANN201
    x_ptr,  # noqa: ANN001
    weight_ptr,  # noqa: ANN001
    y_ptr,  # noqa: ANN001
    columns,  # noqa: ANN001
    epsilon,  # noqa: ANN001
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    x = tl.load(x_ptr + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + epsilon)
    weight = tl.load(weight_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * columns + offsets, x * scale * weight, mask=inside)


def microseconds_of_a_call(
    program: Callable[[int], Step], wait: Step, counts: tuple[int, int], rounds: int
) -> tuple[float, float]:
    """The median and the least over the rounds.

    Args:
        program: makes the step of as many calls.
        wait: returns when the device has done all.
    """
    steps = {count: program(count) for count in counts}
    repeats = 10
    times = []
    for turn in range(rounds + 3):
        elapsed = {}
        for count, step in steps.items():
            wait()
            begin = time.perf_counter()
            for _ in range(repeats):
                step()
            wait()
            elapsed[count] = (time.perf_counter() - begin) / repeats
        if turn >= 3:
            few, many = counts
            times.append((elapsed[many] - elapsed[few]) / (many - few) * 1e6)
    return statistics.median(times), min(times)


def xla_ways(
    x: torch.Tensor, weight: torch.Tensor, library: str | None
) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """What one call makes of an array, by the way of calling."""
    import torch_xla_ext

    rows, columns = x.shape

    def by_triton(x: torch.Tensor) -> torch.Tensor:
        keywords = {"columns": columns, "epsilon": 1e-6, "BLOCK": triton.next_power_of_2(columns)}
        return torch_xla_ext.triton_call(
            rms_norm, x, weight, outputs=[x], grid=(rows,), num_warps=8, **keywords
        )[0]

    def by_operator(x: torch.Tensor) -> torch.Tensor:
        return torch_xla_ext.run_torch_operator("aten::sigmoid", x)

    ways = {}
    on_gpu = os.environ.get("PJRT_DEVICE") == "CUDA"
    if on_gpu:
        ways["Triton"] = by_triton
    if not on_gpu or torch.cuda.is_available():
        ways["operator of torch"] = by_operator
    for graph in (True, False) if library else ():
        name = "TvmFfiInGraphs" if graph else "TvmFfi"
        torch_xla_ext.register_kernel(
            name,
            library,
            abi="tvm-ffi",
            symbol="rmsnorm",
            platform="CUDA" if on_gpu else "Host",
            signature="(x: T[n, d], w: T[d]) -> (y: T[n, d]) where T: F32 | BF16",
            parameters="eps: f64, pdl: bool",
            arguments="y x w eps pdl",
            cuda_graph=graph,
        )
        ways[name] = lambda x, name=name: torch_xla_ext.custom_call(
            name, [x, weight], [x], attributes={"eps": 1e-6, "pdl": False}
        )[0]
    return ways


def xla_programs(x: torch.Tensor, weight: torch.Tensor, library: str | None) -> dict[str, Callable]:
    import torch_xla

    import torch_xla_ext

    device = torch_xla.device()
    x, weight = x.to(device), weight.to(device)
    torch_xla.sync(wait=True)

    def program(call: Callable[[torch.Tensor], torch.Tensor], count: int) -> Step:
        def chain(x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = call(x)
            return x

        captured = torch_xla_ext.capture(chain, verify=2)  # before it is timed
        return lambda: captured(x)

    return {
        name: lambda count, call=call: program(call, count)
        for name, call in xla_ways(x, weight, library).items()
    }


def torch_programs(x: torch.Tensor) -> dict[str, Callable]:
    """torch's own calls of the operator, one by one and in a CUDA graph."""
    x = x.cuda()

    def chain(count: int) -> Step:
        def step() -> torch.Tensor:
            y = x
            for _ in range(count):
                y = torch.sigmoid(y)
            return y

        return step

    return {
        "operator, torch's own calls": chain,
        "operator, torch's CUDA graph": lambda count: in_cuda_graph(chain(count)),
    }


def in_cuda_graph(step: Step) -> Step:
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def peer_programs(x: torch.Tensor, weight: torch.Tensor) -> dict[str, Callable]:
    x, weight = x.cuda(), weight.cuda()
    y, (rows, columns) = torch.empty_like(x), x.shape
    block = triton.next_power_of_2(columns)

    def chain(count: int) -> Step:
        def step() -> None:
            a, b = x, y
            for _ in range(count):
                rms_norm[(rows,)](a, weight, b, columns, 1e-6, BLOCK=block, num_warps=8)
                a, b = b, a

        return step

    return {
        "Triton's own launch": chain,
        "Triton's own launch, CUDA graph": lambda count: in_cuda_graph(chain(count)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", action="store_true", help="Triton's own launch, without XLA")
    parser.add_argument("--tvm-ffi", metavar="LIBRARY", help="with rmsnorm: FlashInfer's norm.so")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--calls", nargs=2, type=int, default=(50, 250))
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    if not args.peer:
        import torch_xla.core.xla_model as xm
    on_gpu = args.peer or os.environ.get("PJRT_DEVICE") == "CUDA"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    for shape in args.shapes:
        torch.manual_seed(0)
        x, weight = torch.randn(SHAPES[shape]), torch.randn(SHAPES[shape][1])
        x, weight = x.to(dtype), weight.to(dtype)
        groups = []
        if not args.peer:
            groups.append((xla_programs(x, weight, args.tvm_ffi), xm.wait_device_ops))
        if torch.cuda.is_available():
            own = torch_programs(x) | (peer_programs(x, weight) if args.peer else {})
            groups.append((own, torch.cuda.synchronize))
        for programs, wait in groups:
            for name, program in programs.items():
                times = microseconds_of_a_call(program, wait, tuple(args.calls), args.rounds)
                print("{:6} {:32} median {:7.2f} µs, least {:7.2f} µs".format(shape, name, *times))
                sys.stdout.flush()


if __name__ == "__main__":
    main()
