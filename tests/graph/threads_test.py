"""Captured steps of several threads, and in forked processes."""

import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch_xla
from testing.scripts import run_script
from testing.stale import device
from testing.threads import run_in_threads
from testing.xla import XLAC
from torch import Tensor

from torch_xla_ext import CaptureError, capture

SYNCS = ["_xla_step_marker", "_xla_sync_multi", "_xla_sync_live_tensors", "_xla_warm_up_cache"]


def together(functions: list[Callable[[], Any]]) -> list[Any]:
    """Runs each in a thread, from the same moment; returns results and errors."""
    barrier, results = threading.Barrier(len(functions)), [None] * len(functions)

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = functions[number]()
        except Exception as error:
            results[number] = error

    run_in_threads(*(partial(run, number) for number in range(len(functions))))
    return results


def test_first_calls_at_once() -> None:
    upstream = [getattr(XLAC, name) for name in SYNCS]
    for number in range(5):
        steps = [capture(lambda x, n=n, i=number: (x * n).sin() + i) for n in range(3)]
        inputs = [device(n + 1) for n in range(3)]
        torch_xla.sync()
        results = together(
            [lambda s=s, x=x: [s(x) for _ in range(5)] for s, x in zip(steps, inputs, strict=True)]
        )
        for n, outputs in enumerate(results):
            for output in outputs:
                expected = (inputs[n].cpu() * n).sin() + number
                torch.testing.assert_close(output.cpu(), expected)
    assert [getattr(XLAC, name) for name in SYNCS] == upstream
    torch_xla.sync()


def test_one_step_in_all_threads() -> None:
    """Every call adds once, whichever thread traces it."""
    total = device(0)
    step = capture(lambda x: total.add_(x).clone())
    one = device(1)
    torch_xla.sync()
    results = together([lambda: [step(one) for _ in range(20)] for _ in range(4)])
    values = sorted(value.item() for outputs in results for value in outputs)
    assert values == list(range(1, 81))
    assert step.num_captures == 1


def test_an_error_restores_everything() -> None:
    upstream = [getattr(XLAC, name) for name in SYNCS], torch.autograd._engine_run_backward
    apply = torch.autograd.function.BackwardCFunction.apply
    step = capture(lambda x: x * x.sum().item())
    results = together([lambda: step(device(1)) for _ in range(3)])
    assert all(isinstance(result, CaptureError) for result in results)
    with pytest.raises(CaptureError):
        step(device(1))
    assert (
        [getattr(XLAC, name) for name in SYNCS],
        torch.autograd._engine_run_backward,
    ) == upstream
    assert torch.autograd.function.BackwardCFunction.apply is apply
    assert sys.getprofile() is None
    torch_xla.sync()


def test_refusals_belong_to_the_thread_that_traces() -> None:
    """Meanwhile a second thread calls torch_xla.sync(), reads values and runs a backward pass."""
    traces, may_end = threading.Event(), threading.Event()

    def step(x: Tensor) -> Tensor:
        traces.set()
        assert may_end.wait(60)
        return x * 2

    def others() -> list[float]:
        assert traces.wait(60)
        try:
            y = device(3)
            z = y + 1
            torch_xla.sync()
            weight = torch.nn.Parameter(device(2))
            (weight * y).sum().backward()
            return [weight.grad.item(), z.item()]
        finally:
            may_end.set()

    captured = capture(step, check_python=False)
    results = together([lambda: captured(device(1)).item(), others])
    assert results[1] == [3, 4]
    assert results[0] == 2
    assert captured.num_captures == 0  # the read may have been the step's own
    may_end.set()
    for i in range(4):
        assert captured(device(i)).item() == 2 * i
    assert captured.num_captures == 1


@pytest.mark.parametrize(
    ("disturb", "text"),
    [(random.random, "random numbers on the host"), (lambda: device(1).item(), "on the host")],
)
def test_a_thread_that_draws_or_reads_all_the_time(disturb: Callable[[], Any], text: str) -> None:
    """A trace fails only after several attempts, and a captured step never."""
    ends, captured_first = threading.Event(), capture(lambda x: x * 2, verify=True)
    captured_first(device(1))

    def others() -> None:
        while not ends.is_set():
            disturb()

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for i in range(5):
            assert captured_first(device(i)).item() == 2 * i

        def slow(x: Tensor) -> Tensor:
            time.sleep(0.05)
            return x * 3

        step = capture(slow)
        for i in range(8):
            assert step(device(i)).item() == 3 * i
        if step.num_captures == 0:
            with pytest.raises(CaptureError, match=text):
                step(device(1))
    finally:
        ends.set()
        thread.join()
    assert step(device(2)).item() == 6
    assert step.num_captures == 1


def test_a_step_in_the_backward_pass_of_a_step() -> None:
    inner = capture(lambda gradient: gradient * 3)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x + 0

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return inner(gradient)

    weight = torch.nn.Parameter(device(1))

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        Function.apply(weight * x).sum().backward()
        return weight.grad.clone()

    captured = capture(step)
    for i in range(5):
        assert captured(device(i)).tolist() == [3 * i]


UNUSED_GRADIENTS = """
import os, torch, torch_xla, torch_xla_ext

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # autograd's thread is often late
x, weight = torch.randn(4, 6, 32).to("xla"), torch.randn(32).to("xla")
for factor in range(1, 20):

    @torch_xla_ext.capture
    def step(x, weight):
        leaves = [tensor.detach().requires_grad_() for tensor in (x, weight)]
        result = torch.nn.functional.layer_norm(leaves[0], (32,), leaves[1])
        return torch.autograd.grad(factor * result, leaves, x)[0]

    for _ in range(2):
        step(x, weight)
    assert step.num_captures == 1
"""


def test_gradients_that_autograd_still_holds() -> None:
    """The search for kept tensors must not touch tensors that another thread is destroying."""
    run = run_script(UNUSED_GRADIENTS)
    assert (run.returncode, run.stderr) == (0, "")


FORKED = """
import os, signal, sys
import torch, torch_xla, torch_xla_ext

x = torch.ones(3, device="xla")
step = torch_xla_ext.capture(lambda x: x + 1)
step(x).cpu()
uses = {
    "step": lambda: step(x).cpu(),
    "cpu": lambda: x.cpu(),
    "operation": lambda: (x * 3).cpu(),
    "sync": lambda: (x * 5, torch_xla.sync()),
    "tensor": lambda: torch.ones(3).to("xla"),
}
for name, use in uses.items():
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            use()
        except RuntimeError as error:
            print(name, "forked from one that had used XLA" in str(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print("parent", step(x).tolist())
"""


def test_a_fork_cannot_wait_for_the_devices() -> None:
    """In a child process, which lacks XLA's threads, waiting for them is an error."""
    result = run_script(FORKED, timeout=300)
    lines = result.stdout.splitlines()
    expected = [f"{name} True" for name in ("step", "cpu", "operation", "sync", "tensor")]
    assert lines == [*expected, "parent [2.0, 2.0, 2.0]"], result.stdout + result.stderr


def test_fork_before_the_first_use() -> None:
    script = """
import os
import torch, torch_xla, torch_xla_ext
child = os.fork()
if child == 0:
    print(torch.ones(2, device="xla").add(1).tolist(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    result = run_script(script, timeout=300)
    assert result.stdout == "[2.0, 2.0]\n", result.stderr
