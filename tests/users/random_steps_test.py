"""Random functions, captured and under torch.compile(backend="openxla"), called three times each.

They read and write the same tensors in each call. Results and tensors must be those of the CPU.

RANDOM_STEPS and RANDOM_SEED choose how many, and which.
"""

from __future__ import annotations

import os

import pytest
import torch
from testing.random_programs import Program
from testing.random_steps import compare

COUNT = int(os.environ.get("RANDOM_STEPS", "0"))
SEED = int(os.environ.get("RANDOM_SEED", "0"))


@pytest.mark.parametrize("way, count", [("captured", 200), ("openxla", 40)])
def test_random_steps(way: str, count: int, device: torch.device) -> None:
    count = COUNT or count
    failures, called = [], 0
    for seed in range(SEED, SEED + count):
        program = Program(seed)
        try:
            called += compare(way, program, device)
        except (AssertionError, RuntimeError, IndexError, TypeError, ValueError) as error:
            failures.append(f"# seed {seed}\n{program}\n# {error}")
    assert not failures, f"{len(failures)} of {count}:\n" + "\n\n".join(failures[:10])
    assert called > count // 2, "most of them could not be called"
