"""Time the CUDA kernels of grouped_matmul without torch_xla or Bazel.

A plain script for a machine with a GPU, any torch with CUDA and the library that Bazel builds as
//benchmarks:libpaged_kernels.so:

    python kernels/grouped_matmul/gpu_time.py LIBRARY

It calls the untyped entries with packed payloads, as XLA does, in CUDA graphs beside
torch._grouped_mm and torch._scaled_grouped_mm (fp8, with scales for rows and columns), if torch has
these: with the shapes of Qwen3-30B-A3B's experts, and, in bfloat16 and MXFP4, with those of
gpt-oss-20b. grouped_matmul_test.py, which runs on a GPU, too, compares the results with float64.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from kernel_library import KernelLibrary, microseconds

EXPERTS, TOP_K = 128, 8
# (n, k) of the weights for gate and up, and for down.
PRODUCTS = ((1536, 2048), (2048, 768))
TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 8192)
SETS = 4  # of sizes, in turn


def bind(
    library: KernelLibrary, x: torch.Tensor, w: torch.Tensor, ranges: torch.Tensor
) -> Callable[[], None]:
    out = torch.empty(x.shape[0], w.shape[1], dtype=x.dtype, device="cuda")
    return library.bind("XlaGpuGroupedLinear", {"x": x, "w": w, "ranges": ranges, "out": out}, {})


# By kind: the numbers of w's scales along n and k, given n and k.
SCALES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "tensor": lambda n, k: (1, 1),
    "channels": lambda n, k: (n, 1),
    "blocks": lambda n, k: (-(-n // 128), -(-k // 128)),
}


def scaled_arrays(kind: str, rows: int, groups: int, n: int, k: int) -> dict[str, torch.Tensor]:
    n_scales, k_scales = SCALES[kind](n, k)
    numbers = (torch.empty(shape, device="cuda") for shape in ((rows, k), (groups, n, k)))
    x, w = (each.normal_().to(torch.float8_e4m3fn) for each in numbers)
    x_scale = torch.rand(rows, k_scales, device="cuda") + 0.5
    w_scale = torch.rand(groups, n_scales, k_scales, device="cuda") + 0.5
    return {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale}


def mx_arrays(groups: int, n: int, k: int, most: int) -> dict[str, torch.Tensor]:
    """Return weights with random codes, and exponents from 117 to `most`."""
    codes = torch.randint(256, (groups, n, k // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randint(117, most + 1, (groups, n, k // 32), device="cuda").to(torch.uint8)
    return {"w": codes.view(torch.float4_e2m1fn_x2), "w_scale": scales.view(torch.float8_e8m0fnu)}


def sizes_of(tokens: int, seed: int, experts: int = EXPERTS, top_k: int = TOP_K) -> torch.Tensor:
    """Return random numbers of tokens for each expert."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(tokens, experts, generator=generator).topk(top_k, dim=1).indices
    return torch.bincount(chosen.flatten(), minlength=experts)


def median_time(calls: Sequence[Callable[[], object]]) -> float:
    """Return the median microseconds of a call, from a CUDA graph that makes all calls twice."""
    return statistics.median(microseconds([*calls, *calls], repeats=5))


def time_all(library: KernelLibrary) -> None:
    print("microseconds", torch.cuda.get_device_name(), flush=True)
    for n, k in PRODUCTS:
        w = torch.empty(EXPERTS, n, k, dtype=torch.bfloat16, device="cuda").uniform_(-0.05, 0.05)
        right = w.transpose(1, 2)
        for tokens in TOKENS:
            x = torch.randn(tokens * TOP_K, k, dtype=torch.bfloat16, device="cuda")
            all_sizes = [sizes_of(tokens, seed).int().cuda() for seed in range(SETS)]
            ends = [sizes.cumsum(0).int() for sizes in all_sizes]
            ranges = [torch.stack([e - s, e], 1) for e, s in zip(ends, all_sizes, strict=True)]
            ours = median_time([bind(library, x, w, each) for each in ranges])
            text = f"n={n} k={k} tokens={tokens} ours {ours:.1f}"
            if hasattr(torch, "_grouped_mm"):
                calls = [partial(torch._grouped_mm, x, right, offs=each) for each in ends]
                text += f" torch {median_time(calls):.1f}"
            print(text, flush=True)


def time_scaled(library: KernelLibrary, kind: str) -> None:
    for n, k in PRODUCTS:
        for tokens in TOKENS:
            arrays = scaled_arrays(kind, tokens * TOP_K, EXPERTS, n, k)
            arrays["out"] = torch.empty(tokens * TOP_K, n, dtype=torch.bfloat16, device="cuda")
            arrays["like"] = torch.empty(0, dtype=torch.bfloat16, device="cuda")
            all_sizes = [sizes_of(tokens, seed).int().cuda() for seed in range(SETS)]
            ends = [sizes.cumsum(0).int() for sizes in all_sizes]
            calls = [
                library.bind(
                    "XlaGpuScaledGroupedLinear", arrays | {"ranges": torch.stack([e - s, e], 1)}, {}
                )
                for e, s in zip(ends, all_sizes, strict=True)
            ]
            text = f"fp8, {kind} n={n} k={k} tokens={tokens} ours {median_time(calls):.1f}"
            if kind == "channels" and hasattr(torch, "_scaled_grouped_mm"):
                scales = arrays["x_scale"].flatten(), arrays["w_scale"].flatten(1)
                operands = arrays["x"], arrays["w"].transpose(1, 2), *scales
                calls = [
                    partial(
                        torch._scaled_grouped_mm, *operands, offs=each, out_dtype=torch.bfloat16
                    )
                    for each in ends
                ]
                try:
                    text += f" torch {median_time(calls):.1f}"
                except RuntimeError as error:
                    text += f" torch: {str(error).splitlines()[0]}"
            print(text, flush=True)


def time_mx(library: KernelLibrary) -> None:
    experts, top_k = 32, 4
    for n, k in ((5760, 2880), (2880, 2880)):
        wide = torch.empty(experts, n, k, dtype=torch.bfloat16, device="cuda").uniform_(-0.05, 0.05)
        packed = mx_arrays(experts, n, k, 124)
        for tokens in TOKENS:
            x = torch.randn(tokens * top_k, k, dtype=torch.bfloat16, device="cuda")
            out = torch.empty(tokens * top_k, n, dtype=torch.bfloat16, device="cuda")
            sets = [sizes_of(tokens, seed, experts, top_k).int().cuda() for seed in range(SETS)]
            ends = [sizes.cumsum(0).int() for sizes in sets]
            ranges = [torch.stack([e - s, e], 1) for e, s in zip(ends, sets, strict=True)]
            arrays = packed | {"x": x, "out": out}
            narrow = median_time(
                [library.bind("XlaGpuMxGroupedLinear", arrays | {"ranges": r}, {}) for r in ranges]
            )
            active = statistics.mean(int((sizes > 0).sum()) for sizes in sets)
            rate = active * n * k * 17 / 32 / narrow * 1e-6
            ours = median_time([bind(library, x, wide, each) for each in ranges])
            text = f"n={n} k={k} tokens={tokens} MXFP4 {narrow:.1f}, {rate:.2f} TB/s of weights"
            print(f"{text}, bfloat16 {ours:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    library = KernelLibrary(parser.parse_args().library)
    torch.manual_seed(0)
    time_all(library)
    for kind in ("blocks", "channels"):
        time_scaled(library, kind)
    time_mx(library)


if __name__ == "__main__":
    main()
