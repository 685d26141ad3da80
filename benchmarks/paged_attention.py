"""Measure the paged attention kernels on a GPU beside PyTorch's SDPA and FlashInfer.

    ./bazelw build //benchmarks:libpaged_kernels.so
    python3 benchmarks/paged_attention.py bazel-bin/benchmarks/libpaged_kernels.so

It needs any Python and a CUDA build of torch, but not torch_xla: the kernels are called through
their untyped entries, as XLA calls them. FlashInfer is measured if it can be imported.

bfloat16, 32 query heads and 8 kv heads, head_dim 128, pages of 16 tokens. Each result is first
compared with float64. Times are medians of GPU time, from a CUDA graph of many calls whose inputs
change from call to call and together do not fit into the L2 cache. Bytes are the minimum that must
be moved.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable

import paged_attention_cases as cases
import torch
from kernel_library import KernelLibrary, microseconds
from paged_attention_cases import SCALE, Case, Inputs

# The size of the inputs of all calls in a round, so that a call's inputs are not in L2 when it runs
# again.
ROTATED_BYTES = 300e6
OURS = {"paged_attention", "ragged_paged_attention"}
PARAMETERS = {
    "scale": SCALE,
    "sm_scale": SCALE,
    "sliding_window": 0,
    "soft_cap": 0.0,
    "key_scale": 1.0,
    "value_scale": 1.0,
    "k_scale": 1.0,
    "v_scale": 1.0,
    "causal": True,
    "report_out_of_range": False,
    "q_is_float8": False,
    "max_q_len": 0,
}


class Ours:
    """This project's kernels."""

    def __init__(self, library: KernelLibrary) -> None:
        self.library = library

    def workspace(self, device: torch.device) -> torch.Tensor:
        """Return a workspace larger than any kernel here needs; its size never changes a result."""
        return torch.full((8 << 20,), float("nan"), device=device)

    def no_lse(self, out: torch.Tensor) -> torch.Tensor:
        """Return an empty buffer for a result that is not requested."""
        return torch.empty(0, out.shape[1], device=out.device)

    def paged(self, case: Case, inputs: Inputs) -> cases.Bound:
        out = torch.full_like(inputs.q, float("nan"))
        arrays = {
            "query": inputs.q,
            "key_cache": inputs.key_cache,
            "value_cache": inputs.value_cache,
            "block_tables": inputs.tables,
            "context_lens": inputs.kv_lens,
            "out": out,
            "lse": self.no_lse(out),
            "workspace": self.workspace(out.device),
        }
        return self.library.bind("XlaGpuPagedAttention", arrays, PARAMETERS), lambda: out

    def ragged(self, case: Case, inputs: Inputs) -> cases.Bound:
        out = torch.full_like(inputs.q, float("nan"))
        arrays = {
            "q": inputs.q,
            "kv_pages": inputs.kv_pages,
            "kv_lens": inputs.kv_lens,
            "page_indices": inputs.tables,
            "cu_q_lens": inputs.cu_q_lens,
            "num_seqs": inputs.num_seqs,
            "out": out,
            "lse": self.no_lse(out),
            "workspace": self.workspace(out.device),
        }
        return self.library.bind("XlaGpuRaggedPagedAttention", arrays, PARAMETERS), lambda: out

    def attention(self, case: Case) -> dict[str, Callable[[Case, Inputs], cases.Bound]]:
        kernels: dict[str, Callable[[Case, Inputs], cases.Bound]] = {}
        if case.kind == "decode":
            kernels["paged_attention"] = self.paged
        kernels["ragged_paged_attention"] = self.ragged
        return kernels


def run(case: Case, names: dict[str, Callable], repeats: int) -> int:
    """Print a line for each implementation; return how many of this project's failed."""
    count = max(2, int(ROTATED_BYTES // case.bytes) + 1)
    sets = [cases.make_inputs(case, torch.device("cuda")) for _ in range(count)]
    failed = 0
    for name, bind in names.items():
        try:
            bound = [bind(case, inputs) for inputs in sets]
            for call, _ in bound:
                call()
            torch.cuda.synchronize()
            error = cases.error(case, sets[0], bound[0][1]())
            calls = [call for call, _ in bound] * max(1, 20 // count)
            us = statistics.median(microseconds(calls, repeats))
            rates = f"{case.bytes / us / 1e6:5.2f} TB/s {case.flops / us / 1e6:5.0f} TFLOP/s"
            text = f"{us:9.1f} us  {rates}  error {error:.1e}"
        except Exception as failure:
            text = f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:150]
            failed += name in OURS
        print(f"{case.name:<31} {name:<24} {text}", flush=True)
        bound = []
        torch.cuda.empty_cache()
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", help="libpaged_kernels.so, built by //benchmarks")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    ours = Ours(KernelLibrary(args.library))
    random.seed(0)
    torch.manual_seed(0)
    flashinfer = getattr(cases.flashinfer, "__version__", None)
    print(torch.cuda.get_device_name(), torch.__version__, f"FlashInfer {flashinfer}", sep=", ")
    failed = 0
    for case in cases.CASES:
        if args.only in case.name:
            names = ours.attention(case) | cases.attention_peers(case)
            failed += run(case, names, args.repeats)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
