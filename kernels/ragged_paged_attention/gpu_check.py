"""Check and time the CUDA kernel of ragged_paged_attention without torch_xla or Bazel.

A plain script for a machine with a GPU, any torch with CUDA and the library that Bazel builds as
//benchmarks:libpaged_kernels.so:

    python kernels/ragged_paged_attention/gpu_check.py [--time] LIBRARY...

It calls the untyped entry with a packed payload, as XLA does, and compares with float64.
Every library is checked and timed; the peers (torch's SDPA on a dense copy, a matrix product)
are timed once, in the same run.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from gpu_check_batches import (
    F8,
    Batch,
    few_queries_batch,
    fill_with_garbage,
    make_batch,
    random_batch,
    reference,
)
from kernel_library import KernelLibrary

TARGET = "XlaGpuRaggedPagedAttention"
LIMITS = {torch.bfloat16: 1e-2, torch.float16: 2e-3}


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
    error = (first.double() - expected).norm() / expected.norm().clamp_min(1e-30)
    faults = []
    if not torch.equal(first.view(torch.int16), out.view(torch.int16)):
        faults.append("two runs differ")
    if not error <= LIMITS[batch.q.dtype]:
        rows = (first.double() - expected).abs().amax((1, 2)).nan_to_num(1e9)
        faults.append(f"error {error:.3g}, worst row {int(rows.argmax())}")
    if not torch.allclose(lse.double(), expected_lse, rtol=1e-4, atol=2e-3):
        rows = (lse.double() - expected_lse).nan_to_num(0).abs().amax(1)
        faults.append(f"lse {float(rows.max()):.3g}, worst row {int(rows.argmax())}")
    if not bool((first[(expected == 0).all(-1)] == 0).all()):
        faults.append("rows that should be zero are not")
    if faults:
        raise AssertionError(f"{kernel.name}: {'; '.join(faults)}: {text}")
    return float(error)


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
            fixed |= {"dtype": dtype, "cache_dtype": rng.choice([dtype, F8])}
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
    for cache_dtype in (torch.bfloat16, F8):
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
            cache_dtype=(dtype, F8)[i % 2],
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
    expected, _ = reference(batch)
    error = (out.double() - expected).norm() / expected.norm()
    return [] if error <= 1e-2 else [f"{kernel.name}: captured graph: error {error:.3g}"]


def milliseconds(variants: dict[str, list[Callable]], rounds: int = 9) -> dict[str, float]:
    """Return the median GPU time of one of many back-to-back calls, with inputs in rotation.

    The variants alternate, because the clock of a GPU at its power limit changes.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds + 1):  # the first one warms up
        for name, calls in variants.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(2):
                for call in calls:
                    call()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / (2 * len(calls)))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


F8_CACHE = {"cache_dtype": F8, "k_scale": 0.7}
F8_ALL = F8_CACHE | {"q_is_float8": True}
GENERIC = {"page_size": 24}  # not supported by the Hopper kernel
# The lengths of queries and contexts, and options of make_batch.
CASES = {
    "prefill 1 x 8192": ([8192], [8192], {}),
    "prefill 8 x 2048": ([2048] * 8, [2048] * 8, {}),
    "chunk 4 x 1024 of 8192": ([1024] * 4, [8192] * 4, {}),
    "mixed 2 x 2048 + 62 x 1 of 2048": ([2048] * 2 + [1] * 62, [2048] * 64, {}),
    "decode 64 x 1024": ([1] * 64, [1024] * 64, {}),
    "decode 128 x 4096": ([1] * 128, [4096] * 128, {}),
    "decode 16 x 4096": ([1] * 16, [4096] * 16, {}),
    "decode 1 x 8192": ([1], [8192], {}),
    "decode 1 x 131072": ([1], [131072], {}),
    "sinks, decode 128 x 4096": ([1] * 128, [4096] * 128, {"sinks": True}),
    "sinks, prefill 1 x 8192": ([8192], [8192], {"sinks": True}),
    "not causal, 1 x 8192": ([8192], [8192], {"causal": False}),
    **{
        f"{q} guesses of {n} x {length}": ([q] * n, [length] * n, {})
        for q, n, length in (
            (2, 1, 131072),
            (4, 1, 131072),
            (8, 1, 131072),
            (16, 1, 131072),
            (4, 1, 8192),
            (4, 4, 32768),
            (4, 16, 4096),
            (4, 128, 4096),
        )
    },
    "tree, 8 guesses of 16 x 4096": ([8] * 16, [4096] * 16, {"mask_words": 1}),
    "fp8 decode 128 x 4096": ([1] * 128, [4096] * 128, F8_CACHE),
    "fp8 decode 16 x 4096": ([1] * 16, [4096] * 16, F8_CACHE),
    "fp8 decode 1 x 8192": ([1], [8192], F8_CACHE),
    "fp8 decode 1 x 131072": ([1], [131072], F8_CACHE),
    "fp8 decode 64 x 1..8192": ([1] * 64, [n * 128 for n in range(1, 65)], F8_CACHE),
    "fp8 mixed": ([2048] * 2 + [1] * 62, [2048] * 64, F8_CACHE),
    "fp8 4 guesses of 32 x 4096": ([4] * 32, [4096] * 32, F8_CACHE),
    "fp8 chunk 1 x 64 of 65536": ([64], [65536], F8_CACHE),
    "fp8 chunk 1 x 256 of 65536": ([256], [65536], F8_CACHE),
    "fp8 chunk 1 x 512 of 16384": ([512], [16384], F8_CACHE),
    "fp8 prefill 1 x 8192": ([8192], [8192], F8_CACHE),
    "fp8 prefill 8 x 2048": ([2048] * 8, [2048] * 8, F8_CACHE),
    "fp8 queries, chunk 1 x 512 of 16384": ([512], [16384], F8_ALL),
    "fp8 queries, prefill 1 x 8192": ([8192], [8192], F8_ALL),
    "fp8 queries, prefill 8 x 2048": ([2048] * 8, [2048] * 8, F8_ALL),
    "generic prefill 1 x 8192": ([8192], [8192], GENERIC),
    "generic mixed": ([2048] * 2 + [1] * 62, [2048] * 64, GENERIC),
    "generic decode 128 x 4096": ([1] * 128, [4096] * 128, GENERIC),
    "generic decode 16 x 4096": ([1] * 16, [4096] * 16, GENERIC),
    "generic decode 1 x 131072": ([1], [131072], GENERIC),
    **{
        f"{dim}{name} decode 16 x 4096": ([1] * 16, [4096] * 16, options | {"head_dim": dim})
        for dim in (64, 96, 192, 256)
        for name, options in (("", {}), (" fp8", F8_CACHE))
    },
    **{
        f"{dim}{name} prefill 2 x 4096": ([4096] * 2, [4096] * 2, options | {"head_dim": dim})
        for dim in (64, 256)
        for name, options in (("", {}), (" fp8", F8_CACHE))
    },
}


def peers(num_seqs: int, length: int) -> dict[str, list[Callable]]:
    """Return torch's SDPA on dense random data of the same shape, with 32 heads."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def dense() -> torch.Tensor:
        return torch.randn(num_seqs, 32, length, 128, dtype=torch.bfloat16, device="cuda")

    sets = [(dense(), dense(), dense()) for _ in range(3)]

    def attention(backend: SDPBackend, operands: tuple[torch.Tensor, ...]) -> None:
        with sdpa_kernel(backend), torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(*operands, is_causal=True)

    backends = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
    return {b.name: [partial(attention, b, s) for s in sets] for b in backends}


def time_all(kernels: list[Kernel], workspace_sizes: list[int], only: str) -> None:
    """Print GPU times of the kernels and peers: bf16, 32 query and 8 kv heads, pages of 16."""
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    ms = milliseconds({"": [lambda: a @ b]})[""]
    print(f"matrix product 8192^3: {2 * 8192**3 / ms / 1e9:.0f} TFLOP/s")
    for case, (q_lens, kv_lens, options) in CASES.items():
        if only not in case:
            continue
        head_dim = options.get("head_dim", 128)
        pairs = sum(q * (kv - q) + q * (q + 1) // 2 for q, kv in zip(q_lens, kv_lens, strict=True))
        flops = 4 * head_dim * 32 * pairs
        batches = [make_batch(q_lens, kv_lens, poison=False, **options) for _ in range(3)]
        read = sum(kv_lens) * 8 * 2 * head_dim * batches[0].kv_pages.dtype.itemsize
        variants = {
            f"{kernel.name} {size}": [kernel.bind(batch, size)[0] for batch in batches]
            for kernel in kernels
            for size in workspace_sizes
        }
        if len(set(q_lens)) == 1 and q_lens == kv_lens and not options:
            variants |= peers(len(q_lens), q_lens[0])
        for name, ms in milliseconds(variants).items():
            rates = f"{flops / ms / 1e9:4.0f} TFLOP/s, {read / ms / 1e9:.2f} TB/s"
            print(f"{case}: {name:24} {ms * 1e3:8.1f} us, {rates}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--small", type=int, metavar="N", help="only run N small batches")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT", help="time cases with TEXT alone")
    parser.add_argument("--workspace", type=int, nargs="*", default=[1])
    arguments = parser.parse_args()
    kernels = [Kernel(str(Path(path).resolve())) for path in arguments.libraries]
    if arguments.small:
        for kernel in kernels:
            run_small(kernel, arguments.small, arguments.seed)
        return 0
    failures = sum(check_all(k, arguments.batches, arguments.seed) for k in kernels)
    if arguments.time:
        time_all(kernels, arguments.workspace, arguments.only)
    return failures != 0


if __name__ == "__main__":
    sys.exit(main())
