"""Operators written in Python need the GIL, so no thread may wait for them and hold it."""

import faulthandler
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch_xla
from torch import Tensor
from torch_xla.core import xla_model

import torch_xla_ext


@torch.library.custom_op("no_deadlock_test::times_two", mutates_args=())
def times_two(x: Tensor) -> Tensor:
    # The function releases the GIL in the middle, as can happen in any Python function.
    threading.Event().wait(0.001)
    return x * 2


times_two.register_fake(torch.empty_like)


torch_xla_ext.register_torch_operator("no_deadlock_test::times_two")


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Ends the process with the stacks of all threads, which a deadlock would hide."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


compiled = torch.compile(lambda x: times_two(x) + 1, backend="openxla", fullgraph=True)


def lazily(x: Tensor) -> Tensor:
    return times_two(x) + 1


STEPS: dict[str, Callable[[Tensor], Tensor]] = {"lazy": lazily, "compiled": compiled}


def wait_for_results(x: Tensor) -> None:
    torch_xla.sync(wait=True)


def mark_only(x: Tensor) -> None:
    torch_xla.sync()


def wait_for_device(x: Tensor) -> None:
    torch_xla.sync()
    xla_model.wait_device_ops()


WAITS: dict[str, Callable[[Tensor], object]] = {
    "nothing": lambda x: None,
    "sync": mark_only,
    "sync and wait": wait_for_results,
    "wait_device_ops": wait_for_device,
    "sync these": lambda x: torch_xla._XLAC._xla_sync_multi([x], [], False, True),
    "sync and wait for these": lambda x: torch_xla._XLAC._xla_sync_multi([x], [], True, True),
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x[0].item(),
    "repr": repr,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.detach().cpu().numpy(),
    "copy_ to the CPU": lambda x: torch.empty(4).copy_(x),
    "bool": lambda x: bool((x > 0).all()),
    "get_cpu_tensors": lambda x: torch_xla._XLAC._xla_get_cpu_tensors([x]),
    "index by a tensor": lambda x: x[(x > 0).nonzero().cpu()],
}


def steps(step: Callable[[Tensor], Tensor], wait: Callable[[Tensor], object]) -> None:
    x = torch.ones(4).to("xla")
    for _ in range(4):
        x = step(x)
        wait(x)
    assert x.tolist() == [31] * 4


@pytest.mark.parametrize(("step", "wait"), list(itertools.product(STEPS, WAITS)))
def test_one_thread(step: str, wait: str) -> None:
    steps(STEPS[step], WAITS[wait])


# torch_xla.sync() would take another thread's tensors while they are traced.
@pytest.mark.parametrize(
    "wait", ["nothing", "sync these", "sync and wait for these", "cpu", "item"]
)
def test_several_threads(wait: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: steps(lazily, WAITS[wait]), range(3)))


def test_eager_mode() -> None:
    torch_xla.experimental.eager_mode(True)
    try:
        steps(lazily, WAITS["nothing"])
    finally:
        torch_xla.experimental.eager_mode(False)


def test_many_programs_are_in_flight() -> None:
    x = torch.ones(4).to("xla")
    for _ in range(20):
        x = compiled(x) / 2
        torch_xla.sync()
    assert x.tolist() == [11] * 4
