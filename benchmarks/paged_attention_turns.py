"""Measures two builds of the paged attention kernels, and FlashInfer, in turns.

    python3 benchmarks/paged_attention_turns.py before=old.so now=libpaged_kernels.so

The speed of a GPU at its power limit varies by several percent from minute to minute. Therefore
each candidate of a case is first captured in its own CUDA graph, and then the graphs are replayed
one after another, nine times. Inputs, results and calls live as long as the graphs. Results are
compared with float64 and with those of a second call.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import paged_attention_cases as cases
import paged_attention_peers as peers
import torch
from kernel_library import KernelLibrary
from paged_attention import ROTATED_BYTES, Ours, event_microseconds
from paged_attention_cases import Case

GRAPH_MICROSECONDS = 2500
REPLAYS = 9


def few(queries: int, seqs: int, length: int) -> Case:
    """Several query tokens at the end of each context, as a speculative decoder has them."""
    return Case(f"{queries} queries of {seqs} x {length}", (queries,) * seqs, (length,) * seqs)


CASES = [
    *cases.CASES,
    cases.decode(2, 4096),
    cases.decode(3, 4096),
    cases.decode(1, 8192, torch.float8_e4m3fn),
    Case("mixed 62 x 1 + 2 x 2048 of 2048", (1,) * 62 + (2048,) * 2, (2048,) * 64),
    Case("512 of 8192 + 31 x 1 of 4096", (512,) + (1,) * 31, (8192,) + (4096,) * 31),
    few(2, 16, 4096),
    few(4, 16, 4096),
    few(8, 16, 4096),
    few(4, 1, 8192),
    few(4, 4, 4096),
    few(4, 8, 4096),
    few(4, 64, 1024),
    few(4, 1, 32768),
    few(4, 1, 131072),
    few(2, 4, 32768),
    few(4, 4, 32768),
    few(4, 16, 32768),
    few(16, 1, 131072),
    Case("4, 4, 5 and 3 queries of 32768", (4, 4, 5, 3), (32768,) * 4),
    *(
        cases.decode(seqs, length, shards=shards)
        for shards in (2, 4)
        for seqs, length in ((16, 4096), (64, 1024))
    ),
]


@dataclass
class Variant:
    """Calls with different inputs in a CUDA graph."""

    graph: torch.cuda.CUDAGraph
    calls: int
    error: float
    keep: object  # what the graph refers to
    times: list[float] = field(default_factory=list)


def capture(case: Case, sets: list[cases.Inputs], bind: Callable) -> Variant:
    """Checks an implementation and captures calls of it.

    Raises:
        AssertionError: its result is wrong, or a second one differs.
    """
    bound = [bind(case, inputs) for inputs in sets]

    def run(rounds: int = 1) -> None:
        for _ in range(rounds):
            for call, _ in bound:
                call()

    run()
    error = cases.error(case, sets[0], bound[0][1]())
    first = bound[0][1]().clone()
    run()
    assert torch.equal(first, bound[0][1]()), "two results differ"
    once = event_microseconds(run, 1, 3)
    rounds = min(max(round(GRAPH_MICROSECONDS / once), 1), 12)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(rounds)
    graph.replay()
    torch.cuda.synchronize()
    return Variant(graph, rounds * len(bound), error, bound)


def compare(case: Case, libraries: dict[str, Ours]) -> int:
    """Prints a line for each implementation; returns the number of failures."""
    count = max(2, min(int(ROTATED_BYTES // case.bytes) + 1, 12))
    sets = [cases.make_inputs(case, torch.device("cuda")) for _ in range(count)]
    bindings = {
        f"{kernel}, {name}": bind
        for name, ours in libraries.items()
        for kernel, bind in ours.attention(case).items()
    }
    if case.heads == cases.HEADS:  # which the peers have
        for name, bind in peers.attention_peers(case).items():
            if "FlashInfer" in name:
                bindings[name] = bind
    variants: dict[str, Variant] = {}
    failures = 0
    for name, bind in bindings.items():
        try:
            variants[name] = capture(case, sets, bind)
        except Exception as failure:
            text = " ".join(str(failure).split())[:200]
            print(f"{case.name:32} {name:36} {type(failure).__name__}: {text}", flush=True)
            failures += 1
    for _ in range(REPLAYS):
        for variant in variants.values():
            time = event_microseconds(variant.graph.replay, variant.calls, 1)
            variant.times.append(time)
    for name, variant in variants.items():
        us = statistics.median(variant.times[1:])
        rates = f"{case.flops / us / 1e6:4.0f} TFLOP/s {case.bytes / us / 1e6:5.2f} TB/s"
        line = f"{case.name:32} {name:36} {us:8.1f} us {rates} error {variant.error:.1e}"
        print(line, flush=True)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("libraries", nargs="+", metavar="NAME=LIBRARY")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in their name")
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    workspace = torch.full((8 << 20,), float("nan"), device="cuda")
    libraries = {}
    for text in args.libraries:
        name, _, path = text.rpartition("=")
        libraries[name] = ours = Ours(KernelLibrary(path))
        ours.workspace = lambda device: workspace
    failures = 0
    for case in CASES:
        if args.only in case.name:
            failures += compare(case, libraries)
            torch.cuda.empty_cache()
    print(f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
