"""Random functions of tensors that are sharded over two devices, called three times each.

They read and write the same tensors in each call. Results and tensors must be those of the CPU.

RANDOM_STEPS and RANDOM_SEED choose how many, and which.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
import torch_xla.distributed.spmd as xs
from testing.random_programs import Program, State
from testing.random_steps import compare

COUNT = int(os.environ.get("RANDOM_STEPS", "0"))
SEED = int(os.environ.get("RANDOM_SEED", "0"))
# XLA:CPU cannot add up over devices what any() and all() compute.
XLAS_LIMIT = "Unsupported reduction computation"


@pytest.mark.parametrize("way, count", [("lazy", 50), ("captured", 80), ("openxla", 30)])
def test_random_shardings(way: str, count: int, device: torch.device, mesh: xs.Mesh) -> None:
    count = COUNT or count
    failures, called = [], 0
    for seed in range(SEED, SEED + count):
        program, rng = Program(seed), random.Random(seed)

        def shard(state: State, rng: random.Random = rng) -> None:
            for tensor in state:
                dim = rng.choice([None, *range(tensor.dim())])
                if dim is not None:
                    spec = tuple("x" if i == dim else None for i in range(tensor.dim()))
                    xs.mark_sharding(tensor, mesh, spec)

        try:
            called += compare(way, program, device, shard)
        except (AssertionError, RuntimeError, IndexError, TypeError, ValueError) as error:
            if XLAS_LIMIT not in str(error):
                failures.append(f"# seed {seed}\n{program}\n# {error}")
    assert not failures, f"{len(failures)} of {count}:\n" + "\n\n".join(failures[:10])
    assert called > count // 2, "most of them could not be called"
