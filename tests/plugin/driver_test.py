"""Calls of CUDA's driver, for which a driver in Python stands, and their users."""

import ctypes

import pytest
from testing.fake_cuda import ALREADY_ENABLED, OUT_OF_MEMORY, FakeCuda, fake_cuda

from torch_xla_ext.sharding import peer_memory
from xla_kernels.plugin import driver

__all__ = ["fake_cuda"]


def test_properties_from_the_driver(fake_cuda: FakeCuda) -> None:
    fake_cuda.sizes = (80, 100)
    assert driver.device_count() == 2
    assert driver.cuda_version() == (13, 1)
    assert [driver.total_memory(i) for i in range(2)] == [80, 100]
    assert driver.device_name(1) == "NVIDIA Fake 1"
    assert driver.compute_capability.__wrapped__() == 90


def test_errors(fake_cuda: FakeCuda) -> None:
    with pytest.raises(driver.DriverError, match=r"cuMemAlloc_v2: CUDA_ERROR_OUT_OF_M\w+ \(2\)"):
        driver.allocate(1 << 40)
    fake_cuda.fails = {"cuCtxSynchronize": 999}
    with pytest.raises(driver.DriverError, match=r"cuCtxSynchronize: an unknown error") as error:
        driver.driver()("cuCtxSynchronize")
    assert error.value.code == 999
    assert driver.driver()("cuCtxSynchronize", allowed=(999,)) == 999


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(driver.DriverError, match="there is no CUDA driver"):
        driver.driver.__wrapped__()


def test_memory_for_all_gpus(fake_cuda: FakeCuda) -> None:
    fake_cuda.sizes = (1, 1, 1)
    fake_cuda.fails = {"cuCtxEnablePeerAccess": ALREADY_ENABLED}
    addresses = peer_memory._on_gpus([0, 2], 256)
    assert fake_cuda.allocated == dict.fromkeys(addresses, 256)
    assert fake_cuda.called.count("cuCtxEnablePeerAccess") == 2
    assert fake_cuda.contexts == [0, 2]  # as long as the memory: forever
    assert not fake_cuda.stack
    fake_cuda.fails = {"cuCtxEnablePeerAccess": OUT_OF_MEMORY}
    with pytest.raises(driver.DriverError, match="cuCtxEnablePeerAccess"):
        peer_memory._on_gpus([0, 2], 256)
    assert not fake_cuda.stack
