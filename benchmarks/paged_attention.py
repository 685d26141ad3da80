"""Measures the paged attention kernels on a GPU, PyTorch's SDPA and FlashInfer.

    ./bazelw build //benchmarks:libpaged_kernels.so
    python3 benchmarks/paged_attention.py bazel-bin/benchmarks/libpaged_kernels.so --json out.json

It needs any Python and a CUDA build of torch, but not torch_xla: the kernels are called through
their untyped entries, as XLA calls them. FlashInfer is measured if it can be imported.

bfloat16, 32 query heads and 8 kv heads, head_dim 128, pages of 16 tokens. Each result is first
compared with float64. Times are medians of GPU time, from a CUDA graph of many calls whose inputs
change from call to call and together do not fit into the L2 cache. "launched" is the same without
a graph: calls from Python, back to back between two events. Bytes are the minimum that has to be
moved; a copy counts bytes read and written.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import paged_attention_cases as cases
import torch
from kernel_library import KernelLibrary
from paged_attention_cases import DTYPE, HEAD_DIM, HEADS, KV_HEADS, SCALE, Case, Inputs, Update

# Of the inputs of all calls of a round, so that nothing of a call's is in L2 when it comes again.
ROTATED_BYTES = 300e6
OURS = {"paged_attention", "ragged_paged_attention", "kv_cache_update", "kv_pages_update"}
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
}


@dataclass
class Row:
    """One measurement; or why there is none."""

    case: str
    name: str
    microseconds: float | None = None
    launched: float | None = None
    terabytes: float | None = None  # each second
    share_of_copy: float | None = None
    teraflops: float | None = None  # each second
    share_of_matmul: float | None = None
    error: float | None = None
    note: str = ""

    def text(self) -> str:
        line = f"{self.case:<31} {self.name:<38}"
        if self.microseconds is None:
            return f"{line} {self.note}"
        line += f" {self.microseconds:9.1f} us  launched {self.launched:9.1f}"
        if self.share_of_copy is not None:
            line += f"  {self.terabytes:5.2f} TB/s {self.share_of_copy:6.1%} of copy"
        if self.share_of_matmul is not None:
            line += f"  {self.teraflops:5.0f} TFLOP/s {self.share_of_matmul:6.1%} of matmul"
        if self.error is not None:
            line += f"  error {self.error:.1e}"
        return line + (f"  {self.note}" if self.note else "")


def event_microseconds(run: Callable[[], object], calls: int, repeats: int) -> float:
    """The median over `repeats` of the GPU's time for one of the `calls` that `run` makes."""
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def measure(calls: Sequence[Callable], repeats: int) -> tuple[float | None, float, str]:
    """Microseconds of a call in a CUDA graph, and launched; and why there was no graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()

    def run(rounds: int) -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    once = event_microseconds(partial(run, 1), len(calls), 3)
    rounds = min(max(round(4000 / (once * len(calls))), 1), 20)
    launched = event_microseconds(partial(run, rounds), rounds * len(calls), repeats)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run(rounds)
    except Exception as failure:
        torch.cuda.synchronize()
        return None, launched, f"no graph: {failure}"[:80]
    graph.replay()
    torch.cuda.synchronize()
    return event_microseconds(graph.replay, rounds * len(calls), repeats), launched, ""


class Ours:
    """This project's kernels."""

    def __init__(self, library: KernelLibrary) -> None:
        self.library = library

    def workspace(self, device: torch.device) -> torch.Tensor:
        """More than any kernel here makes use of: how much there is never changes a result."""
        return torch.full((8 << 20,), float("nan"), device=device)

    def no_lse(self, out: torch.Tensor) -> torch.Tensor:
        """The result that nobody asks for."""
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

    def update_split(self, update: Update) -> Callable[[], object]:
        keys, values = update.inputs.key_cache, update.inputs.value_cache
        arrays = {
            "key": update.key,
            "value": update.value,
            "slot_mapping": update.slots,
            "key_cache": keys,
            "value_cache": values,
        }
        return self.library.bind("XlaGpuKvCacheUpdate", arrays, PARAMETERS)

    def update_pages(self, update: Update) -> Callable[[], object]:
        pages = update.inputs.kv_pages
        arrays = {
            "key": update.key,
            "value": update.value,
            "slot_mapping": update.slots,
            "kv_pages": pages,
        }
        return self.library.bind("XlaGpuKvPagesUpdate", arrays, PARAMETERS)


def run_attention(
    case: Case, names: dict[str, Callable], repeats: int, copy: float, matmul: float
) -> list[Row]:
    """A row for each implementation."""
    count = max(2, int(ROTATED_BYTES // case.bytes) + 1)
    sets = [cases.make_inputs(case, torch.device("cuda")) for _ in range(count)]
    rows = []
    for name, bind in names.items():
        row = Row(case.name, name)
        try:
            bound = [bind(case, inputs) for inputs in sets]
            call, result = bound[0]
            call()
            torch.cuda.synchronize()
            row.error = cases.error(case, sets[0], result())
            graph, row.launched, row.note = measure([call for call, _ in bound], repeats)
            row.microseconds = graph or row.launched
            row.terabytes = case.bytes / row.microseconds / 1e6
            row.teraflops = case.flops / row.microseconds / 1e6
            if case.kind == "decode":
                row.share_of_copy = row.terabytes / copy
            else:
                row.share_of_matmul = row.teraflops / matmul
        except Exception as failure:
            row.note = f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:150]
        print(row.text(), flush=True)
        rows.append(row)
        bound = call = result = None
        torch.cuda.empty_cache()
    return rows


def check_update(update: Update, call: Callable[[], object]) -> None:
    """Compares the caches with what they should be, every byte of them.

    Raises:
        AssertionError: they differ.
    """
    inputs, slots = update.inputs, update.slots.long()
    keys, values = (x.flatten(0, 1).clone() for x in (inputs.key_cache, inputs.value_cache))
    pages = inputs.kv_pages.flatten(0, 1).clone()
    keys[slots], values[slots] = update.key, update.value
    both = torch.stack([update.key, update.value], 2).flatten(1, 2)
    new_pages = pages.index_copy(0, slots, both)
    call()
    split_is_new = torch.equal(inputs.key_cache.flatten(0, 1), keys) and torch.equal(
        inputs.value_cache.flatten(0, 1), values
    )
    pages_are_new = torch.equal(inputs.kv_pages.flatten(0, 1), new_pages)
    pages_are_old = torch.equal(inputs.kv_pages.flatten(0, 1), pages)
    assert pages_are_new or (split_is_new and pages_are_old), "the cache is not what it should be"


def run_update(names: dict[str, Callable], repeats: int, copy: float) -> list[Row]:
    rows = []
    count = int(ROTATED_BYTES // cases.UPDATE_BYTES) + 1
    for name, bind in names.items():
        row = Row(f"update {cases.UPDATE_SEQS} x {cases.UPDATE_TOKENS} tokens", name)
        try:
            updates = [cases.make_update(torch.device("cuda")) for _ in range(count)]
            calls = [bind(update) for update in updates]
            check_update(updates[0], calls[0])
            graph, row.launched, row.note = measure(calls, repeats)
            row.microseconds = graph or row.launched
            row.terabytes = cases.UPDATE_BYTES / row.microseconds / 1e6
            row.share_of_copy = row.terabytes / copy
        except Exception as failure:
            row.note = f"{type(failure).__name__}: {' '.join(str(failure).split())}"[:150]
        print(row.text(), flush=True)
        rows.append(row)
    return rows


def torch_update(update: Update) -> Callable[[], object]:
    """torch's index_put_."""
    slots = update.slots.long()
    keys, values = (x.flatten(0, 1) for x in (update.inputs.key_cache, update.inputs.value_cache))

    def call() -> None:
        keys[slots] = update.key
        values[slots] = update.value

    return call


def copy_bandwidth(repeats: int) -> float:
    """TB/s of a copy of 4 GB on the device."""
    source = torch.randint(256, (4_000_000_000,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 8e9 / event_microseconds(lambda: target.copy_(source), 1, repeats) / 1e6


def matmul_speed(repeats: int) -> float:
    """TFLOP/s of a product of two random bfloat16 matrices of 8192 x 8192."""
    a, b = (torch.randn(8192, 8192, dtype=DTYPE, device="cuda") for _ in range(2))
    out = a @ b
    time = event_microseconds(lambda: [torch.mm(a, b, out=out) for _ in range(4)], 4, repeats)
    return 2 * 8192**3 / time / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", help="libpaged_kernels.so, built by //benchmarks")
    parser.add_argument("--json", metavar="FILE", help="write all measurements to a file")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--no-peers", action="store_true", help="measure only this project's kernels"
    )
    args = parser.parse_args()
    ours = Ours(KernelLibrary(args.library))
    random.seed(0)
    torch.manual_seed(0)
    copy, matmul = copy_bandwidth(args.repeats), matmul_speed(args.repeats)
    torch.cuda.empty_cache()
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "flashinfer": getattr(cases.flashinfer, "__version__", None),
        "shapes": f"{HEADS} heads, {KV_HEADS} KV heads, head_dim {HEAD_DIM}, {DTYPE}",
        "copy_terabytes": copy,
        "matmul_teraflops": matmul,
    }
    print(*(f"{name}: {value}" for name, value in about.items()), sep="\n", flush=True)
    rows: list[Row] = []

    def save() -> None:
        if args.json:
            text = json.dumps(about | {"rows": [asdict(row) for row in rows]}, indent=1)
            Path(args.json).write_text(text)

    for case in cases.CASES:
        if args.only in case.name:
            names = ours.attention(case) | ({} if args.no_peers else cases.attention_peers(case))
            rows += run_attention(case, names, args.repeats, copy, matmul)
            save()  # what there is, should a later case never end
    if args.only in "update":
        names = {"kv_cache_update": ours.update_split, "kv_pages_update": ours.update_pages}
        if not args.no_peers:
            names["torch index_put_"] = torch_update
            if cases.flashinfer is not None:
                names["FlashInfer append"] = partial(cases.flashinfer_append, cases.UPDATE_CASE)
        rows += run_update(names, args.repeats, copy)
    about["again"] = again = copy_bandwidth(args.repeats), matmul_speed(args.repeats)
    save()
    print(
        f"\ncopy {copy:.2f} TB/s, again {again[0]:.2f}; matmul {matmul:.0f}, again {again[1]:.0f}"
    )
    print(*(row.text() for row in rows), sep="\n")
    failed = [r for r in rows if r.microseconds is None and r.name in OURS]
    print(f"{len(failed)} of this project's kernels failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
