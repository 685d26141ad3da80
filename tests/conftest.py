"""Fixtures of all tests that run on the built wheel."""

import pytest
import torch
import torch_xla


@pytest.fixture
def device() -> torch.device:
    """The XLA device that PJRT_DEVICE chooses."""
    return torch_xla.device()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
