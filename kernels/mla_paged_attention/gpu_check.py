"""Check and time the CUDA kernel of mla_paged_attention without torch_xla or Bazel.

A plain script for a machine with a GPU, any torch with CUDA and the library that Bazel builds as
//benchmarks:libpaged_kernels.so:

    python kernels/mla_paged_attention/gpu_check.py [--time] LIBRARY

It calls the untyped entry with a packed payload, as XLA does, and compares with float64.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
from kernel_library import KernelLibrary, microseconds
from testing.paged import FP8, TOLERANCES, attention_and_lse, relative_error

TARGET = "XlaGpuMlaPagedAttention"


class Batch:
    """Random operands. Rows that no kernel may read are NaN."""

    def __init__(
        self,
        contexts: list[int],
        num_heads: int,
        dtype: torch.dtype = torch.bfloat16,
        cache: torch.dtype | None = None,
        block_size: int = 64,
        bad_blocks: bool = False,
        poison: bool = True,
    ) -> None:
        used = [-(-n // block_size) for n in contexts]
        num_blocks, max_blocks = sum(used) + 3, max(*used, 0, 0) + 1
        self.query = torch.randn(len(contexts), num_heads, 576, device="cuda").to(dtype)
        rows = torch.randn(num_blocks, block_size, 576, device="cuda")
        order = torch.randperm(num_blocks, device="cuda").int()
        self.tables = torch.full(
            (len(contexts), max_blocks), 0x7F7F7F7F, dtype=torch.int32, device="cuda"
        )
        begin = 0
        for s, (count, n) in enumerate(zip(used, contexts, strict=True)):
            self.tables[s, :count] = order[begin : begin + count]
            if poison and n % block_size:
                rows[order[begin + count - 1], n % block_size :] = math.nan
            begin += count
        if poison:
            rows[order[begin:]] = math.nan
        if bad_blocks:
            bad = torch.rand(self.tables.shape, device="cuda") < 0.2
            self.tables[bad] = random.choice([-1, num_blocks, -(2**31)])
        self.cache = rows.to(cache or dtype)
        self.lens = torch.tensor(contexts, dtype=torch.int32, device="cuda")
        self.params = {
            "scale": 192**-0.5,
            "kv_scale": 0.7 if cache == FP8 else 1.0,
            "report_out_of_range": False,
        }

    def bind(
        self, library: KernelLibrary, workspace: int, lse_rows: int
    ) -> tuple[Callable[[], None], torch.Tensor, torch.Tensor]:
        shape = self.query.shape
        out = torch.full((*shape[:2], 512), math.nan, dtype=self.query.dtype, device="cuda")
        lse = torch.full((lse_rows, shape[1]), math.nan, device="cuda")
        arrays = {
            "query": self.query,
            "kv_cache": self.cache,
            "block_tables": self.tables,
            "context_lens": self.lens,
            "out": out,
            "lse": lse,
            "workspace": torch.full((workspace,), math.nan, device="cuda"),
        }
        return library.bind(TARGET, arrays, self.params), out, lse

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the results in float64, from the header's definition."""
        shape = self.query.shape
        out = torch.zeros(*shape[:2], 512, dtype=torch.float64, device="cuda")
        lse = torch.full(shape[:2], -math.inf, dtype=torch.float64, device="cuda")
        num_blocks, size = self.cache.shape[:2]
        for s in range(len(out)):
            n = min(max(int(self.lens[s]), 0), self.tables.shape[1] * size)
            token = torch.arange(n, device="cuda")
            block = self.tables[s].long()[token // size]
            valid = (block >= 0) & (block < num_blocks)
            token, block = token[valid], block[valid]
            if not len(token):
                continue
            rows = self.cache[block, token % size].float().double() * self.params["kv_scale"]
            rows, query = rows[:, None], self.query[s : s + 1]
            scale = self.params["scale"]
            out[s], lse[s] = attention_and_lse(query, rows, rows[..., :512], scale=scale)
        return out, lse


def check(library: KernelLibrary, text: str, batch: Batch, workspace: int) -> list[str]:
    call, first, _ = batch.bind(library, workspace, 0)
    call()
    call, out, lse = batch.bind(library, workspace, len(batch.query))
    call()
    torch.cuda.synchronize()
    expected, expected_lse = batch.reference()
    faults = []
    error = relative_error(first, expected)
    if not error <= TOLERANCES[first.dtype]:
        faults.append(f"error {error:.3g}: {text}")
    rows = (first.double() - expected).norm(dim=-1)
    if not bool((rows <= 4 * TOLERANCES[first.dtype] * expected.norm(dim=-1)).all()):
        faults.append(f"a row is wrong: {text}")
    if not torch.equal(first.view(torch.int16), out.view(torch.int16)):
        faults.append(f"two runs differ: {text}")
    if not torch.allclose(lse.double(), expected_lse, rtol=1e-4, atol=2e-3):
        faults.append(f"lse: {text}")
    return faults


def check_all(library: KernelLibrary, count: int, seed: int) -> int:
    random.seed(seed)
    torch.manual_seed(seed)
    faults = []
    for _ in range(count):
        kind = random.choice(["short", "long", "mixed"])
        longest = {"short": 100, "long": 9000, "mixed": 3000}[kind]
        contexts = [random.randint(0, longest) for _ in range(random.choice([1, 2, 5, 20]))]
        dtype = random.choice([torch.bfloat16, torch.float16])
        options = {
            "num_heads": random.choice([1, 8, 16, 17, 32, 64, 100, 128]),
            "dtype": dtype,
            "cache": random.choice([dtype, FP8]),
            "block_size": random.choice([8, 13, 16, 64, 128, 256]),
            "bad_blocks": random.random() < 0.2,
        }
        workspace = random.choice([0, 1, 70_000, 1 << 20, 1 << 23])
        text = f"{options}, workspace {workspace}: {contexts}"
        faults += check(library, text, Batch(contexts, **options), workspace)
    for fault in faults[:8]:
        print("  FAIL", fault[:600])
    print(f"{count} batches, {len(faults)} failures")
    return len(faults)


CASES = {
    f"{name}{heads} heads, {n} x {length}": ([length] * n, heads, cache)
    for heads in (16, 128)
    for n, length in ((128, 4096), (16, 4096), (1, 8192), (1, 131072))
    for name, cache in (("", None), ("fp8, ", FP8))
}


def time_all(library: KernelLibrary) -> None:
    """Print GPU times of back-to-back calls, with three input sets in rotation."""
    for name, (contexts, heads, cache) in CASES.items():
        calls = []
        for _ in range(3):
            batch = Batch(contexts, heads, cache=cache, poison=False)
            calls.append(batch.bind(library, 1 << 25, 0)[0])
        us = statistics.median(microseconds(3 * calls, repeats=7))
        tokens = sum(contexts)
        read = tokens * 576 * batch.cache.dtype.itemsize / us / 1e6
        flops = tokens * heads * 2 * (576 + 512) / us / 1e6
        print(f"{name}: {us:.1f} us, {read:.2f} TB/s, {flops:.0f} TFLOP/s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time", action="store_true")
    arguments = parser.parse_args()
    library = KernelLibrary(arguments.library)
    failures = check_all(library, arguments.batches, arguments.seed)
    if arguments.time:
        time_all(library)
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
