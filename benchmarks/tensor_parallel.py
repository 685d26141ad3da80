r"""Measure a decode step on one and on several devices: time and communication.

  python benchmarks/tensor_parallel.py --devices=1,2 --json=parallel.json

The model is that of decode_step.py, captured. Its heads, the columns of its MLP, and the vocabulary
of embedding and head are sharded over the devices. Each number of devices is measured in its own
process; on GPUs it sets CUDA_VISIBLE_DEVICES. "2x8" shards sequences over 2 and heads over 8.

The communication can be read from the program without a GPU, with any number of CPU devices:

  PJRT_DEVICE=CPU python benchmarks/tensor_parallel.py --devices=8,2x8 --layers=2 --width=1024 \
      --shapes=16x64 --steps=1
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# Bits of an element, by the letters and digits that name its type.
_BITS = {"pred": 8, "bf16": 16}
_COLLECTIVE = re.compile(
    r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)
_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\]")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--devices", default="1,2", help="numbers, or SEQUENCESxHEADS, comma-separated"
    )
    parser.add_argument(
        "--shapes", default="16x4096,64x1024", help="SEQUENCESxTOKENS, comma-separated"
    )
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096, help="hidden size; not the heads")
    parser.add_argument("--steps", type=int, default=30, help="number of steps timed together")
    parser.add_argument("--json", type=Path, help="file to write the results to")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(args: argparse.Namespace) -> None:
    results = []
    for devices in args.devices.split(","):
        count = math.prod(map(int, devices.split("x")))
        for shape in args.shapes.split(","):
            with tempfile.TemporaryDirectory() as folder:
                flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
                environment = {
                    **os.environ,
                    "CPU_NUM_DEVICES": str(count),
                    "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count))),
                    "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}",
                    "TORCH_XLA_EXT_REFUSE_GATHERS": "1",
                }
                command = [sys.executable, __file__, *sys.argv[1:], f"--one={devices}:{shape}"]
                done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
                lines = done.stdout.splitlines()
                result = {"devices": devices, "shape": shape, "failed": done.returncode}
                if done.returncode == 0 and lines:
                    result = json.loads(lines[-1])
                    result["collectives"] = in_dump(Path(folder))
            results.append(result)
            print(json.dumps(result), flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")


def _num_bytes(kind: str, dims: str) -> int:
    bits = _BITS.get(kind) or int(re.search(r"\d+", kind)[0])
    return math.prod(map(int, filter(None, dims.split(",")))) * bits // 8


def collectives(program: str) -> dict[str, dict[str, int]]:
    """Count the collectives of each kind, and the bytes of their results on each device."""
    result: dict[str, dict[str, int]] = {}
    for shape, kind, started in _COLLECTIVE.findall(program):
        arrays = _ARRAY.findall(shape)
        if started and kind != "all-reduce":  # operands and then results
            arrays = arrays[len(arrays) // 2 :][: max(1, len(arrays) // 2)]
        entry = result.setdefault(kind, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += sum(_num_bytes(*array) for array in arrays)
    return result


def in_dump(folder: Path) -> dict[str, dict[str, int]]:
    """Count the collectives of the last program with the kernel, which a captured step replays."""
    files = sorted(folder.glob("*after_optimizations.txt"), key=lambda file: file.stat().st_mtime)
    programs = [text for file in files if "PagedAttention" in (text := file.read_text())]
    return collectives(programs[-1]) if programs else {}


def run_one(args: argparse.Namespace) -> None:
    devices, shape = args.one.split(":")
    data, model = map(int, ("1x" + devices).split("x")[-2:])
    seqs, length = map(int, shape.split("x"))

    import decode_step
    import numpy as np
    import torch
    import torch_xla
    import torch_xla.runtime as xr
    from decode_step import Config
    from torch_xla.distributed import spmd

    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    share = args.width / Config.width
    config = Config(
        layers=args.layers,
        width=args.width,
        inner=int(Config.inner * share),
        head_dim=int(Config.head_dim * share) if share >= 0.5 else 64,
        vocabulary=int(Config.vocabulary * share),
        parts=model,
    )
    place = mark = None
    if data * model > 1:
        xr.use_spmd()
        mesh = spmd.Mesh(np.arange(data * model), (data, model), ("data", "model"))

        def mark(tensor: torch.Tensor, *axes: str | None) -> None:
            spec = (*axes, *[None] * (tensor.dim() - len(axes)))
            spmd.mark_sharding(tensor, mesh, spec)

        def place(weight: torch.Tensor, dim: int) -> None:
            mark(weight, *[None] * dim, "model")

    step = decode_step.Xla(config, seqs, length, place, mark)
    captured = step.way("captured")
    result = {
        "devices": devices,
        "shape": shape,
        "layers": config.layers,
        "width": config.width,
        "device": xr.device_type(),
        **decode_step.measure(captured, step.wait, args.steps),
    }
    torch_xla.sync()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    arguments = parse_arguments()
    if arguments.one:
        run_one(arguments)
    else:
        run_all(arguments)
