r"""Print the kernels that XLA compiles from a program for an H100, on a machine without a GPU.

    pip install jax==0.11.2 jax-cuda13-plugin==0.11.2 jax-cuda13-pjrt==0.11.2 \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88                 # Python 3.12
    python benchmarks/kernels_without_gpu.py step.mlir [other.mlir ...]

Each FILE is a program in StableHLO. With this wheel, `torch_xla._XLAC._get_stablehlo([tensor, …],
"xla:0", [], False)` is that of pending tensors, on any platform.

Each line is a kernel: the megabytes that it writes and reads (the whole operand is counted, even if
it reads only a part), its kind, and its name. XLA's autotuner needs a GPU, so on a GPU matmuls may
use different kernels; fusions and transposes are the same. The program is written to
FILE.optimized.txt.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

# XLA's description of the device, from its dumps (*.gpu_target_config.pbtxt).
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
BITS = {"pred": 8, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "f32": 32, "s32": 32, "u32": 32}
BITS |= {"f64": 64, "s64": 64, "u64": 64, "c64": 64, "c128": 128}
NO_KERNELS = {"bitcast", "constant", "get-tuple-element", "parameter", "tuple"}


def compiled(program: bytes, handlers: Sequence[str] = ()) -> str:
    """Return the optimized program in XLA's text.

    Args:
        handlers: handlers for the program's targets, as in --handler.
    """
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    toolkit = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
    flags = f"--xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={toolkit}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    (device,) = topologies.get_topology_desc(
        platform="cuda", target_config=H100, topology="1x1x1", topology_name="1x1x1"
    ).devices
    for name, library, symbol in (each.split(":") for each in handlers):
        import jax

        function = getattr(ctypes.CDLL(os.path.realpath(library)), symbol)
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="CUDA")
    options = xla_client.CompileOptions()
    with mlir.make_ir_context():
        module = ir.Module.parse(program)
        executable = device.client.compile(module, xla_client.DeviceList((device,)), options)
    return executable.hlo_modules()[0].to_string()


def megabytes(shape: str) -> float:
    total = 0
    for dtype, dimensions in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        size = BITS.get(dtype, 0) / 8
        for dimension in filter(None, dimensions.split(",")):
            size *= int(dimension)
        total += size
    return total / 1e6


def kernels(text: str) -> list[tuple[float, float, str, str]]:
    """Return the megabytes written and read, the kind and the name of each kernel of the entry."""
    shapes: dict[str, str] = {}
    rows = []
    for line in text[text.index("\nENTRY") :].splitlines():
        match = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)", line)
        if match is None:
            continue
        name, shape, operation, rest = match.groups()
        shapes[name] = shape
        if operation in NO_KERNELS:
            continue
        operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
        target = re.search(r'custom_call_target="([^"]+)"', line)
        kind = target[1] if target else "Triton" if "__triton" in line else operation
        read = sum(megabytes(shapes.get(operand, "")) for operand in operands)
        rows.append((megabytes(shape), read, kind, name))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+")
    parser.add_argument(
        "--handler",
        metavar="TARGET:LIBRARY:SYMBOL",
        action="append",
        default=[],
        help="an FFI handler for a target that the program calls; XLA only looks at it, so that "
        "the one for the Host does: MySquare:./libsquare_host.so:MySquareHostFfi",
    )
    args = parser.parse_args()
    for file in args.files:
        text = compiled(file.read_bytes(), args.handler)
        file.with_name(file.name + ".optimized.txt").write_text(text)
        rows = kernels(text)
        print(f"{file}: {len(rows)} kernels, {sum(row[0] + row[1] for row in rows):.0f} MB")
        for written, read, kind, name in sorted(rows, key=lambda row: -row[0] - row[1]):
            print(f"  {written:9.1f} {read:9.1f}  {kind:28} {name}")


if __name__ == "__main__":
    main()
