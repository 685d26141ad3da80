"""Random functions of tensors that are sharded over two devices, called three times each.

They read and write the same tensors in each call. Results and tensors must be those of the CPU.

RANDOM_STEPS and RANDOM_SEED choose how many, and which.
"""

import os
import random

import pytest
import torch
import torch_xla.distributed.spmd as xs
from testing import random_steps
from testing.random_programs import State

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made


@pytest.mark.parametrize("way, count", [("lazy", 25), ("captured", 40), ("openxla", 15)])
def test_random_shardings(way: str, count: int, device: torch.device, mesh: xs.Mesh) -> None:
    def shard(state: State, seed: int) -> None:
        rng = random.Random(seed)
        for tensor in state:
            dim = rng.choice([None, *range(tensor.dim())])
            if dim is not None:
                spec = tuple("x" if i == dim else None for i in range(tensor.dim()))
                xs.mark_sharding(tensor, mesh, spec)

    random_steps.check(way, count, device, shard)
