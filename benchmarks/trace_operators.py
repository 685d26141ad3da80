"""Measures the host time to trace a call of an operator, and of PyTorch's index_add.

    python benchmarks/trace_operators.py

Shapes are those of a decode step: 16 sequences, 32 query and 8 key heads of 128.
"""

import argparse
from collections.abc import Callable

import torch
import torch_xla
from trace_time import print_times

from torch_xla_ext import custom_call

NUM_SEQS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS = 16, 32, 8, 128, 16, 64


def cases(device: torch.device) -> dict[str, Callable[[], object]]:
    def on_device(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device)

    query = on_device(torch.randn(NUM_SEQS, NUM_HEADS, HEAD_DIM).bfloat16())
    key, value = (
        on_device(torch.randn(NUM_SEQS, NUM_KV_HEADS, HEAD_DIM).bfloat16()) for _ in range(2)
    )
    cache = torch.zeros(NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM).bfloat16()
    caches = [on_device(cache) for _ in range(2)]
    written = [on_device(cache) for _ in range(2)]
    tables = on_device(torch.zeros(NUM_SEQS, NUM_BLOCKS // NUM_SEQS, dtype=torch.int32))
    lengths = on_device(torch.ones(NUM_SEQS, dtype=torch.int32))
    slots = on_device(torch.arange(NUM_SEQS, dtype=torch.int32))
    rows, index = on_device(torch.zeros(NUM_SEQS, 8)), on_device(torch.arange(NUM_SEQS))
    added = on_device(torch.ones(NUM_SEQS, 8))
    rows_written = on_device(torch.zeros(NUM_SEQS, 8))
    operators, aten = torch.ops.xla_gpu, torch.ops.aten
    return {
        "aten.index_add": lambda: aten.index_add(rows, 0, index, added),
        "aten.index_add_": lambda: aten.index_add_(rows_written, 0, index, added),
        "custom_call of simple_add": lambda: custom_call("XlaGpuSimpleAdd", [rows, added], [rows]),
        "simple_add": lambda: operators.simple_add(rows, added),
        "paged_attention": lambda: operators.paged_attention(
            query, *caches, tables, lengths, HEAD_DIM**-0.5
        ),
        "kv_cache_update": lambda: operators.kv_cache_update(key, value, slots, *written),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="rounds (default: 20)")
    parser.add_argument("--calls", type=int, default=100, help="calls a round (default: 100)")
    args = parser.parse_args()

    calls = cases(torch_xla.device())
    print_times(calls, args.rounds, args.calls)


if __name__ == "__main__":
    main()
