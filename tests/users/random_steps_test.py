"""Random functions, captured and under torch.compile(backend="openxla"), called three times each.

They read and write the same tensors in each call. Results and tensors must be those of the CPU.

RANDOM_STEPS and RANDOM_SEED choose how many, and which.
"""

from __future__ import annotations

import pytest
import torch
from testing import random_steps


@pytest.mark.parametrize("way, count", [("captured", 100), ("openxla", 40)])
def test_random_steps(way: str, count: int, device: torch.device) -> None:
    random_steps.check(way, count, device)


@pytest.mark.parametrize(
    "way, count", [("lazy", 50), ("captured", 100), ("captured with state", 150), ("openxla", 30)]
)
def test_random_steps_of_views(way: str, count: int, device: torch.device) -> None:
    random_steps.check(way, count, device, views=True)


@pytest.mark.parametrize(
    "way, count", [("lazy", 30), ("captured", 60), ("captured with state", 60), ("openxla", 30)]
)
def test_values_that_are_pending_while_their_tensors_are_written_to(
    way: str, count: int, device: torch.device
) -> None:
    random_steps.check(way, count, device, pending=True)
