"""Fixtures for operators on several devices."""

import warnings
from collections.abc import Iterator

import pytest
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing.spmd import mesh_of


@pytest.fixture(scope="module")
def num_devices() -> int:
    xr.use_spmd()
    count = xr.global_runtime_device_count()
    assert count in (2, 4)
    return count


@pytest.fixture
def nothing_is_gathered() -> Iterator[None]:
    """Gathers are errors, unless a test allows them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is gathered")
        yield


@pytest.fixture
def model(num_devices: int) -> xs.Mesh:
    return mesh_of(model=num_devices)
