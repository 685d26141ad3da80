"""Threads that trace and run graphs of torch.compile which write to the same tensor."""

import threading
from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch import Tensor

in_trace = threading.Event()
goes_on = threading.Event()
runs_until_pause = 0


@torch.library.custom_op("threads_with_one_tensor::pause", mutates_args=())
def pause(x: Tensor) -> Tensor:
    global runs_until_pause
    if runs_until_pause == 0:
        in_trace.set()
        goes_on.wait(timeout=3)
    runs_until_pause -= 1
    return x.clone()


pause.register_fake(torch.empty_like)


def slow(x: Tensor, total: Tensor) -> Tensor:
    total.add_(x)
    x = pause(x)
    total.mul_(2)
    return total + x


def quick(x: Tensor, total: Tensor) -> Tensor:
    total.mul_(3)
    return total + x


def read(x: Tensor, total: Tensor) -> Tensor:
    return total * x


def run_during_a_trace(other: Callable, is_traced: bool, own: bool, run: int) -> list[Tensor]:
    """Return the results of `slow` and of `other`, which starts in a run of `slow`.

    Run 0 looks for operators without a kernel, run 1 is the trace.
    """
    global runs_until_pause
    runs_until_pause = run
    torch._dynamo.reset()
    in_trace.clear()
    goes_on.clear()
    x, total = torch.tensor([1.0, 2.0], device="xla"), torch.tensor([3.0, 4.0], device="xla")
    second = torch.tensor([3.0, 4.0], device="xla") if own else total
    compiled = torch.compile(other, backend="openxla", fullgraph=True)
    if not is_traced:
        compiled(x, second)
        second.copy_(torch.tensor([3.0, 4.0]))
    torch_xla.sync()
    results: list[Tensor] = []

    def work() -> None:
        in_trace.wait(timeout=60)
        results.append(compiled(x, second))
        goes_on.set()

    thread = threading.Thread(target=work)
    thread.start()
    first = torch.compile(slow, backend="openxla", fullgraph=True)(x, total)
    thread.join(timeout=60)
    assert not thread.is_alive()
    return [value.cpu() for value in (first, *results, total, second)]


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize("is_traced", [True, False])
@pytest.mark.parametrize("other", [quick, read])
def test_one_tensor(other: Callable, is_traced: bool, run: int) -> None:
    """The results are those of one function after the other, in either order."""
    found = run_during_a_trace(other, is_traced, own=False, run=run)
    orders = []
    for first, second in ((slow, other), (other, slow)):
        x, total = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
        results = {first: first(x, total), second: second(x, total)}
        orders.append([value.tolist() for value in (results[slow], results[other], total, total)])
    assert [value.tolist() for value in found] in orders


def test_another_tensor_is_not_waited_for() -> None:
    found = run_during_a_trace(quick, is_traced=True, own=True, run=1)
    torch.testing.assert_close(found[3], torch.tensor([9.0, 12.0]))
    assert goes_on.is_set()
