"""Measure summing a matrix over the GPUs of this process, and a norm after it.

    PJRT_DEVICE=CUDA python benchmarks/all_reduce.py
    torchrun --nproc-per-node=4 benchmarks/all_reduce.py --nccl   # with PyTorch for CUDA

A step is a chain of sums, each of the previous result, as in the layers of a model: a captured
step, or with --nccl a CUDA graph. Times are in µs for each sum, including the operations between
two sums.

- all_reduce: `ops.all_reduce`
- xla: XLA's own all-reduce
- nccl: NCCL's all-reduce, called by PyTorch
- … + norm: with the addition of a residual and an RMS norm: for all_reduce in the same kernel, for
  the others in kernels of XLA or torch.compile
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

import torch

Pair = tuple[torch.Tensor, torch.Tensor]
EPSILON = 1e-5


def plus_norm(total: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Pair:
    """Return the normalized rows, and the sum with the residual."""
    both = total.float() + residual.float()
    scale = torch.rsqrt(both.square().mean(-1, keepdim=True) + EPSILON)
    return (both * scale).to(total.dtype) * weight, both.to(total.dtype)


def report(way: str, rows: int, columns: int, seconds: float, sums: int) -> None:
    figures = {
        "way": way,
        "rows": rows,
        "columns": columns,
        "kilobytes": rows * columns * 2 / 1024,
        "us": round(seconds / sums * 1e6, 2),
    }
    print(json.dumps(figures), flush=True)


def measure_here(args: argparse.Namespace) -> None:
    import numpy as np
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.spmd as xs
    from torch_xla import runtime

    import torch_xla_ext
    from torch_xla_ext import ops, sharding
    from torch_xla_ext.ops.all_reduce import WORKSPACE_BYTES

    runtime.use_spmd()
    count = runtime.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(count), (count,), ("x",))
    peers = sharding.PeerMemory(mesh, WORKSPACE_BYTES)

    def replicated(tensor: torch.Tensor) -> torch.Tensor:
        on_devices = tensor.to("xla")
        xs.mark_sharding(on_devices, mesh, (None,) * tensor.dim())
        return on_devices

    def inside(tensor: torch.Tensor, spec: tuple[str | None, ...]) -> torch.Tensor:
        return xs.enable_manual_sharding(tensor, spec, mesh=mesh).global_tensor

    def outside(
        tensor: torch.Tensor, spec: tuple[str | None, ...], shape: torch.Size
    ) -> torch.Tensor:
        return xs.disable_manual_sharding(tensor, spec, shape, mesh=mesh).global_tensor

    def of_device(x: torch.Tensor) -> torch.Tensor:
        """Return a device's own matrix to be summed."""
        rank = inside(peers.table, ("x", None))[0, 0]
        return inside(x, (None, None)) * (rank + 1).to(x.dtype) / (count * (count + 1) / 2)

    def all_reduce(x: torch.Tensor) -> torch.Tensor:
        total = ops.all_reduce(of_device(x), inside(peers.table, ("x", None)))
        return outside(total, (None, None), x.shape)

    def xla(x: torch.Tensor) -> torch.Tensor:
        parts = of_device(x)[None]
        return outside(parts, ("x", None, None), torch.Size((count, *x.shape))).sum(0)

    def all_reduce_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Pair:
        results = ops.all_reduce_rms_norm(
            of_device(x),
            inside(residual, (None, None)),
            inside(weight, (None,)),
            inside(peers.table, ("x", None)),
            EPSILON,
        )
        return tuple(outside(result, (None, None), x.shape) for result in results)

    def xla_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Pair:
        return plus_norm(xla(x), residual, weight)

    def separate_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Pair:
        return plus_norm(all_reduce(x), residual, weight)

    ways = {
        "all_reduce": all_reduce,
        "xla": xla,
        "all_reduce + norm": all_reduce_norm,
        "all_reduce, then norm": separate_norm,
        "xla + norm": xla_norm,
    }
    weight = replicated(torch.ones(args.columns, dtype=torch.bfloat16))
    for rows in args.rows:
        results = {}
        for way, function in ways.items():
            step = torch_xla_ext.capture(chain(function, args.sums, weight), check_python=False)
            torch.manual_seed(0)
            x = replicated(torch.randn(rows, args.columns, dtype=torch.bfloat16))
            results[way] = step(x).float().cpu()
            for _ in range(3):
                step(x)
            xm.wait_device_ops()
            times = []
            for _ in range(5):
                begin = time.perf_counter()
                for _ in range(args.steps):
                    step(x)
                xm.wait_device_ops()
                times.append((time.perf_counter() - begin) / args.steps)
            report(way, rows, args.columns, min(times), args.sums)
        torch.testing.assert_close(results["all_reduce"], results["xla"], rtol=0.1, atol=0.1)
        torch.testing.assert_close(
            results["all_reduce + norm"], results["xla + norm"], rtol=0.1, atol=0.1
        )


def chain(
    function: Callable[..., torch.Tensor | Pair], sums: int, weight: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        residual = x
        for _ in range(sums):
            if function.__name__.endswith("norm"):
                x, residual = function(x, residual, weight)
            else:
                x = function(x)
        return x

    return step


def measure_nccl(args: argparse.Namespace) -> None:
    from torch import distributed

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl")
    count = distributed.get_world_size()
    norm = torch.compile(plus_norm)
    weight = torch.ones(args.columns, dtype=torch.bfloat16, device="cuda")

    def nccl(x: torch.Tensor) -> torch.Tensor:
        part = x * ((rank + 1) / (count * (count + 1) / 2))
        distributed.all_reduce(part)
        return part

    def nccl_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Pair:
        return norm(nccl(x), residual, weight)

    for rows in args.rows:
        for way, function in {"nccl": nccl, "nccl + norm": nccl_norm}.items():
            x = torch.randn(rows, args.columns, dtype=torch.bfloat16, device="cuda")
            step = chain(function, args.sums, weight)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    step(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step(x)
            times = []
            for _ in range(6):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(args.steps):
                    graph.replay()
                torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) / args.steps)
            if rank == 0:
                report(way, rows, args.columns, min(times), args.sums)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 64])
    parser.add_argument("--columns", type=int, default=4096, help="of bfloat16")
    parser.add_argument("--sums", type=int, default=64, help="in a step")
    parser.add_argument("--steps", type=int, default=20, help="timed together")
    parser.add_argument("--nccl", action="store_true", help="under torchrun, PyTorch for CUDA")
    args = parser.parse_args()
    (measure_nccl if args.nccl else measure_here)(args)


if __name__ == "__main__":
    main()
