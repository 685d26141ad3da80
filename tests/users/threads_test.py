"""Several threads trace, and call torch_xla.sync(), which computes all threads' tensors."""

import sys
import threading
from functools import partial

import torch
import torch_xla
from testing.scripts import run_script
from testing.threads import run_in_threads


def test_threads_that_sync(device: torch.device) -> None:
    def work(number: int) -> None:
        for step in range(40):
            x = torch.full((4,), float(number), device=device)
            for _ in range(5):
                x.add_(1)
                y = x * 2 + step % 7
                torch_xla.sync()
            assert y.tolist() == [(number + 5) * 2 + step % 7] * 4
            assert x.tolist() == [number + 5] * 4

    run_in_threads(*(partial(work, number) for number in range(3)))


def test_one_of_several_threads_syncs(device: torch.device) -> None:
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            while not done.is_set():
                torch_xla.sync()
            return
        try:
            for step in range(200):
                x = torch.full((3,), float(step), device=device)
                for _ in range(4):
                    x.mul_(2)
                assert (x + 1).tolist() == [step * 16 + 1] * 3
        finally:
            done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that a thread is often stopped within an operation
    try:
        run_in_threads(*(partial(work, number) for number in range(2)))
    finally:
        sys.setswitchinterval(interval)


def test_threads_that_train(device: torch.device) -> None:
    def train(device: torch.device, number: int) -> list[float]:
        generator = torch.Generator().manual_seed(number)
        weight = torch.randn(4, 4, generator=generator).to(device).requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.01, momentum=0.9)
        losses = []
        for _ in range(8):
            loss = (weight @ weight).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    expected = {number: train(torch.device("cpu"), number) for number in range(2)}

    def work(number: int) -> None:
        torch.testing.assert_close(
            torch.tensor(train(device, number)), torch.tensor(expected[number])
        )

    run_in_threads(*(partial(work, number) for number in range(2)))


HAND_OVER = """
import threading, torch, torch_xla
x = torch.ones(4, device="xla")
torch_xla.sync(wait=True)
kept = []

def step():
    buffer = torch_xla._XLAC._unsafe_buffer_pointer(x)
    x.add_(1)
    torch_xla.sync(wait=True)
    kept.append(torch_xla._XLAC._unsafe_buffer_pointer(x) == buffer)

step()
for _ in range(2):
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
step()
step()
print(kept, x.tolist())
"""


def test_buffers_are_donated_until_threads_alternate() -> None:
    done = run_script(HAND_OVER, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[True, True, True, False, False] [6.0, 6.0, 6.0, 6.0]"


def test_a_shape_read_while_its_tensor_gets_data(device: torch.device) -> None:
    """The reader takes no lock before the read, so torch_xla has not seen a second thread yet."""
    script = """
import sys, threading, torch, torch_xla
sys.setswitchinterval(1e-6)
tensors = [torch.zeros(3, 5).to("xla") for _ in range(1000)]
now, done, types = [tensors[0]], threading.Event(), set()

def read():
    while not done.is_set():
        types.add(torch_xla._XLAC._get_xla_tensor_shape_type(now[0]))

thread = threading.Thread(target=read)
thread.start()
for x in tensors:
    now[0] = x
    x.cpu()
done.set()
thread.join()
print(types)
"""
    assert run_script(script).stdout.strip() == "{'f32'}"


def test_a_graph_is_hashed_while_another_thread_syncs() -> None:
    script = """
import sys, threading, torch, torch_xla
sys.setswitchinterval(1e-6)
x, done = torch.zeros(3).to("xla"), threading.Event()
torch_xla.sync()

def sync():
    while not done.is_set():
        torch_xla.sync()

thread = threading.Thread(target=sync)
thread.start()
for _ in range(500):
    torch_xla._XLAC._get_graph_hash([x + i for i in range(30)])
done.set()
thread.join()
print("done")
"""
    assert run_script(script, timeout=120).stdout.strip() == "done"


DAEMON_THREADS = """
import threading, time
import torch, torch_xla

x = torch.randn(500, 500).to("xla")

def repeat(work):
    while True:
        work()

def start_and_wait():
    y = x @ x
    torch_xla.sync(wait=True)

for work in start_and_wait, lambda: (x @ x).cpu():
    threading.Thread(target=repeat, args=(work,), daemon=True).start()
time.sleep(0.5)
print("done", flush=True)
"""


def test_daemon_threads_that_compute_at_exit() -> None:
    done = run_script(DAEMON_THREADS)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
