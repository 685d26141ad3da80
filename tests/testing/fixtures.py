"""Fixtures: the device, a mesh, and random numbers that are the same in each run."""

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
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


@pytest.fixture(scope="module")
def mesh() -> xs.Mesh:
    """A mesh of two devices; the test file sets CPU_NUM_DEVICES."""
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 2
    return xs.Mesh(np.arange(2), (2,), ("x",))
