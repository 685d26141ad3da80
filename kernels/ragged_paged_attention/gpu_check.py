"""Check the CUDA kernel of ragged_paged_attention without torch_xla or Bazel.

A plain script for a machine with a GPU, any torch with CUDA and the library that Bazel builds as
//benchmarks:libpaged_kernels.so:

    python kernels/ragged_paged_attention/gpu_check.py LIBRARY...

It calls the untyped entry with a packed payload, as XLA does, and compares with float64.
benchmarks/paged_attention.py measures the kernel's time.
"""

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from gpu_check_batches import (
    Batch,
    few_queries_batch,
    fill_with_garbage,
    make_batch,
    random_batch,
    reference,
)
from kernel_library import KernelLibrary
from testing.paged import FP8, TOLERANCES, relative_error

TARGET = "XlaGpuRaggedPagedAttention"


class Kernel:
    """The untyped CUDA entry of a library."""

    def __init__(self, path: str) -> None:
        self.name = Path(path).stem
        self.library = KernelLibrary(path)

    def bind(
        self, batch: Batch, workspace_size: int = 1, lse: torch.Tensor | None = None
    ) -> tuple[Callable, torch.Tensor]:
        """Return a function that enqueues the call, and its result, filled with NaN."""
        out = torch.empty_like(batch.q)
        out.view(torch.uint8).fill_(0xFF)
        workspace = torch.empty(workspace_size, dtype=torch.float32, device=batch.q.device)
        workspace.fill_(float("nan"))
        return self.bind_results(batch, out, workspace, lse), out

    def bind_results(
        self,
        batch: Batch,
        out: torch.Tensor,
        workspace: torch.Tensor,
        lse: torch.Tensor | None = None,
    ) -> Callable:
        """Return the same with given results; without `lse`, the call does not compute it."""
        if lse is None:
            lse = torch.empty(0, out.shape[1], device=out.device)
        arrays = batch.arrays() | {"out": out, "lse": lse, "workspace": workspace}
        params = {"sliding_window": 0, "soft_cap": 0.0, "k_scale": 1.0, "v_scale": 1.0}
        params |= {"causal": True, "report_out_of_range": False, "q_is_float8": False}
        params |= {"max_q_len": 0}
        params |= batch.params
        return self.library.bind(TARGET, arrays, params)


def check(kernel: Kernel, text: str, batch: Batch, workspace_size: int) -> float:
    """Return the relative error; raise if it is too large or a second run differs.

    The second run also computes the logarithms of the softmax's denominators.
    """
    call, first = kernel.bind(batch, workspace_size)
    call()
    lse = torch.full(batch.q.shape[:2], float("nan"), device=batch.q.device)
    call, out = kernel.bind(batch, workspace_size, lse)
    call()
    torch.cuda.synchronize()
    expected, expected_lse = reference(batch)
    error = relative_error(first, expected)
    faults = []
    if not torch.equal(first.view(torch.int16), out.view(torch.int16)):
        faults.append("two runs differ")
    if not error <= TOLERANCES[batch.q.dtype]:
        rows = (first.double() - expected).abs().amax((1, 2)).nan_to_num(1e9)
        faults.append(f"error {error:.3g}, worst row {int(rows.argmax())}")
    if not torch.allclose(lse.double(), expected_lse, rtol=1e-4, atol=2e-3):
        rows = (lse.double() - expected_lse).nan_to_num(0).abs().amax(1)
        faults.append(f"lse {float(rows.max()):.3g}, worst row {int(rows.argmax())}")
    if not bool((first[(expected == 0).all(-1)] == 0).all()):
        faults.append("rows that should be zero are not")
    if faults:
        raise AssertionError(f"{kernel.name}: {'; '.join(faults)}: {text}")
    return error


def check_all(kernel: Kernel, count: int, seed: int) -> int:
    """Check random batches, refusals and capture; return the number of failures."""
    rng = random.Random(seed)
    random.seed(seed)
    torch.manual_seed(seed)
    failures, worst = [], {}
    fast = {"head_dim": 128, "sm_scale": 0.09}
    for i in range(count):
        fixed = {} if i % 2 else fast | {"page_size": rng.choice([8, 16, 32, 64, 128, 256])}
        if not i % 2:
            dtype = rng.choice([torch.bfloat16, torch.float16])
            fixed |= {"dtype": dtype, "cache_dtype": rng.choice([dtype, FP8])}
        if i % 4 == 3:
            text, batch = few_queries_batch(rng)
        else:
            text, batch = random_batch(rng, **fixed)
        try:
            error = check(kernel, text, batch, rng.choice([0, 1, 4096, 60_000, 1 << 20, 1 << 22]))
            key = (str(batch.q.dtype)[6:], str(batch.kv_pages.dtype)[6:], batch.q.shape[2])
            worst[key] = max(worst.get(key, 0.0), error)
        except AssertionError as fault:
            failures.append(str(fault))
    for key, error in sorted(worst.items()):
        print(f"  {kernel.name} {' '.join(map(str, key))}: worst error {error:.2e}")
    failures += check_refusals(kernel) + check_garbage(kernel, max(count // 8, 1), seed)
    for cache_dtype in (torch.bfloat16, FP8):
        failures += check_capture(kernel, cache_dtype)
    for fault in failures[:8]:
        print("  FAIL", fault[:900])
    print(f"{kernel.name}: {count} batches, {len(failures)} failures")
    return len(failures)


def run_small(kernel: Kernel, count: int, seed: int) -> None:
    """Run small batches of every kind without comparisons, for compute-sanitizer."""
    rng = random.Random(seed)
    random.seed(seed)
    for i in range(count):
        dtype = rng.choice([torch.bfloat16, torch.float16])
        batch = make_batch(
            [1, rng.randint(2, 9), rng.randint(17, 80), 0],
            [rng.randint(300, 900), rng.randint(9, 300), 90, rng.randint(0, 40)],
            dtype=dtype,
            cache_dtype=(dtype, FP8)[i % 2],
            head_dim=(128, 64, 96, 192, 256)[i // 2 % 5],
            num_kv_heads=1,
            group=rng.choice([1, 4, 10]),
            page_size=rng.choice([8, 16, 24]),
            spare_seqs=1,
            spare_tokens=2,
            bad_pages=rng.random() < 0.5,
            sliding_window=rng.choice([0, 70]),
            sinks=rng.random() < 0.5,
            mask_words=rng.choice([0, 1]),
        )
        if i >= count // 2:
            fill_with_garbage(rng, batch)
        lse = torch.empty(batch.q.shape[:2], device="cuda")
        kernel.bind(batch, rng.choice([1, 1 << 20]), rng.choice([None, lse]))[0]()
        torch.cuda.synchronize()
    print(f"{kernel.name}: {count} small batches")


def check_garbage(kernel: Kernel, count: int, seed: int) -> list[str]:
    """Check that meaningless device data makes no kernel write outside the results.

    `out` is undefined where cu_q_lens decreases. Run this under compute-sanitizer to find reads out
    of bounds.
    """
    rng = random.Random(seed)
    faults = []
    for _ in range(count):
        text, batch = rng.choice([random_batch, few_queries_batch])(rng)
        fill_with_garbage(rng, batch)
        size, workspace = batch.q.numel(), rng.choice([0, 1, 4096, 1 << 20])
        results = [
            torch.full((size + 2048,), 7.0, dtype=batch.q.dtype, device="cuda"),
            torch.full((workspace + 2048,), 7.0, device="cuda"),
            torch.full((batch.q[..., 0].numel() + 2048,), 7.0, device="cuda"),
        ]
        out, scratch = results[0][1024:-1024].view_as(batch.q), results[1][1024:-1024]
        kernel.bind_results(batch, out, scratch, results[2][1024:-1024].view(batch.q.shape[:2]))()
        torch.cuda.synchronize()
        for result in results:
            if not bool((torch.cat([result[:1024], result[-1024:]]) == 7).all()):
                faults.append(f"{kernel.name}: written beyond a result: {text}")
    return faults


def check_refusals(kernel: Kernel) -> list[str]:
    """Check that calls which the signature refuses name the operand."""
    batch = make_batch([3], [5])
    faults = []

    def expect(text: str, **changes: torch.Tensor) -> None:
        changed = Batch(**(vars(batch) | changes))
        try:
            kernel.bind(changed)[0]()
        except (RuntimeError, TypeError, ValueError) as error:
            if text in str(error):
                return
            faults.append(f"expected {text!r} but got {error}")
        else:
            faults.append(f"expected {text!r} but nothing was raised")

    expect("cu_q_lens", cu_q_lens=batch.cu_q_lens.repeat(2))
    expect("kv_pages", kv_pages=batch.kv_pages[:, :, :15].contiguous())
    expect("num_q_heads", q=batch.q[:, :31].contiguous())
    expect("dtype", q=batch.q.half())
    expect(
        "head_dim", q=batch.q[..., :72].contiguous(), kv_pages=batch.kv_pages[..., :72].contiguous()
    )
    return faults


def check_capture(kernel: Kernel, cache_dtype: torch.dtype) -> list[str]:
    """Check that a CUDA graph of the call works for lengths other than those of its capture."""
    batch = make_batch([70, 1, 30], [100, 90, 2000], poison=False, cache_dtype=cache_dtype)
    call, out = kernel.bind(batch, 1 << 20)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    batch.cu_q_lens.copy_(torch.tensor([0, 1, 40, 101], dtype=torch.int32))
    batch.kv_lens.copy_(torch.tensor([77, 80, 1961], dtype=torch.int32))
    out.view(torch.uint8).fill_(0xFF)
    graph.replay()
    torch.cuda.synchronize()
    error = relative_error(out, reference(batch)[0])
    return [] if error <= 1e-2 else [f"{kernel.name}: captured graph: error {error:.3g}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--small", type=int, metavar="N", help="only run N small batches")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    kernels = [Kernel(str(Path(path).resolve())) for path in arguments.libraries]
    if arguments.small:
        for kernel in kernels:
            run_small(kernel, arguments.small, arguments.seed)
        return 0
    return sum(check_all(k, arguments.batches, arguments.seed) for k in kernels) != 0


if __name__ == "__main__":
    sys.exit(main())
