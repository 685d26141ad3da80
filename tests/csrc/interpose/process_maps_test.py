"""Threads that use what upstream keeps for the whole process: interpose/process_maps.cc."""

import threading

import torch
import torch_xla
from testing.scripts import run_script
from testing.threads import run_in_threads

# M_PERTURB overwrites freed memory, so that whoever reads it fails.
TOKENS = """
import ctypes, threading
import torch, torch_xla

ctypes.CDLL(None).mallopt(-6, 165)
device = torch_xla.device()
x = torch.ones(2, device=device)
torch_xla.sync()
start = threading.Barrier(3)

def reduce():
    start.wait()
    for _ in range(1500):
        torch_xla._XLAC._xla_all_reduce("sum", x, 1.0, [], True)

def begin_steps():
    start.wait()
    for _ in range(1500):
        torch_xla._XLAC._set_all_reduce_token("xla:0", None)

threads = [threading.Thread(target=work) for work in (reduce, reduce, begin_steps)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
total = torch_xla._XLAC._xla_all_reduce("sum", x, 1.0, [], True)
print(total.tolist())
"""


def test_tokens_of_collective_operations() -> None:
    result = run_script(TOKENS)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip() == "[1.0, 1.0]"


def test_other_threads_operations_are_not_a_functions(device: torch.device) -> None:
    x = torch.ones(2, device=device)
    is_inside, may_leave = threading.Event(), threading.Event()
    calls = 0

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        y = x + 1
        if calls > 1:
            is_inside.set()
            assert may_leave.wait(60)
        return y * 2

    compiled = torch_xla.compile(step, max_different_graphs=1)
    results: list[list[float]] = [compiled(x).tolist()]

    def call() -> None:
        results.append(compiled(x).tolist())

    def other() -> None:
        try:
            assert is_inside.wait(60)
            results.append((torch.ones(2, device=device) - 5).abs().tolist())
        finally:
            may_leave.set()

    run_in_threads(call, other)
    assert sorted(results) == [[4.0, 4.0]] * 3


def test_operators_that_run_on_the_cpu_are_counted(device: torch.device) -> None:
    functions = [
        torch.special.airy_ai,
        torch.special.bessel_j0,
        torch.special.bessel_j1,
        torch.special.bessel_y0,
        torch.special.bessel_y1,
        torch.special.modified_bessel_i0,
        torch.special.modified_bessel_i1,
        torch.special.ndtri,
        torch.special.spherical_bessel_j0,
    ]
    x = torch.ones(3, device=device)
    torch_xla.sync()
    threads = 4
    barrier = threading.Barrier(threads)

    def work() -> None:
        for function in functions:
            barrier.wait(60)
            function(x)

    run_in_threads(*[work] * threads)
    for function in functions:
        name = function.__name__.replace("special_", "aten::special_")
        assert name in torch_xla._XLAC._get_executed_fallback_ops()
        assert torch_xla._XLAC._xla_counter_value(name) == threads
