"""torch_xla.sync(wait=True) and xm.unlazy return when the program has ended."""

import time
from collections.abc import Callable

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm

from torch_xla_ext import capture

WAYS: dict[str, Callable[[torch.Tensor], object]] = {
    "sync": lambda y: torch_xla.sync(wait=True),
    "mark_step": lambda y: xm.mark_step(wait=True),
    "unlazy": lambda y: xm.unlazy([y]),
}


def products(x: torch.Tensor) -> torch.Tensor:
    """Products that take long, and longer than everything else in a step."""
    y = x
    for _ in range(20 if torch_xla.runtime.device_type() == "CUDA" else 4):
        y = y @ x
    return y


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    rows = 8192 if torch_xla.runtime.device_type() == "CUDA" else 2048
    return torch.randn(rows, rows).to("xla") / rows**0.5


def seconds_left(work: Callable[[], object]) -> tuple[float, float]:
    """How long the device's work takes after `work` has returned, and altogether."""
    torch_xla.sync(wait=True)
    xm.wait_device_ops()
    begin = time.perf_counter()
    result = work()
    returned = time.perf_counter()
    xm.wait_device_ops()
    end = time.perf_counter()
    del result
    return end - returned, end - begin


@pytest.mark.filterwarnings("ignore:Use torch_xla.sync:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_pending_values(x: torch.Tensor, way: str) -> None:
    def step() -> torch.Tensor:
        y = products(x)
        WAYS[way](y)
        return y

    step()  # compiles
    left, whole = seconds_left(step)
    assert left < whole / 10


@pytest.mark.parametrize(
    "compiled", [torch.compile(backend="openxla"), capture], ids=["openxla", "capture"]
)
def test_programs_that_have_been_started(
    x: torch.Tensor, compiled: Callable[[Callable], Callable]
) -> None:
    function = compiled(products)

    def step() -> torch.Tensor:
        y = function(x)
        torch_xla.sync(wait=True)
        return y

    step()
    left, whole = seconds_left(step)
    assert left < whole / 10


def test_sync_alone_does_not_wait(x: torch.Tensor) -> None:
    def step() -> torch.Tensor:
        y = products(x)
        torch_xla.sync()
        return y

    step()
    left, whole = seconds_left(step)
    assert left > whole / 2
