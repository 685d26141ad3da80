"""Fixtures: the device, and random numbers that are the same in each run."""

import pytest
import torch
import torch_xla
from torch_xla import backends

# A GPU's matrix products are TF32 by default, too coarse to compare with the CPU's.
backends.set_mat_mul_precision("highest")


@pytest.fixture
def device() -> torch.device:
    """The XLA device that PJRT_DEVICE chooses."""
    return torch_xla.device()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
