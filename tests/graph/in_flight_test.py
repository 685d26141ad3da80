"""Captured steps whose program has not started yet, or whose results are still referenced."""

import contextlib
import copy
import faulthandler
import functools
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch_xla
from testing.scripts import run_script
from testing.xla import XLAC
from torch import Tensor

from torch_xla_ext import CaptureError, capture, register_torch_operator


@torch.library.custom_op("in_flight_test::slow", mutates_args=())
def slow(x: Tensor) -> Tensor:
    threading.Event().wait(0.05)
    return x + 1


gate = threading.Event()
gate.set()
passed: list[bool] = []


@torch.library.custom_op("in_flight_test::gated", mutates_args=())
def gated(x: Tensor) -> Tensor:
    passed.append(gate.wait(5))
    return x + 1


for _operator, _name in ((slow, "slow"), (gated, "gated")):
    _operator.register_fake(torch.empty_like)
    register_torch_operator(f"in_flight_test::{_name}")


@contextlib.contextmanager
def closed_gate() -> Iterator[None]:
    """Programs that are started in the block wait in `gated` until its end."""
    torch_xla.sync(wait=True)
    passed.clear()
    gate.clear()
    try:
        yield
    finally:
        gate.set()


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Ends the process with the stacks of all threads, which a deadlock would hide."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def counter(value: float = 0) -> Tensor:
    return torch.full((4,), value).to("xla")


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.cpu(),
        lambda x: (x + 0).cpu(),
        lambda x: torch.empty(4).copy_(x),
        lambda x: x[1:].cpu(),
        lambda x: x.clone().cpu(),
        lambda x: XLAC._xla_get_cpu_tensors([x])[0],
    ],
    ids=["cpu", "program", "copy_", "view", "clone", "get_cpu_tensors"],
)
def test_state_is_read_before_the_step_has_begun(read: Callable[[Tensor], Tensor]) -> None:
    state = counter()

    @capture
    def step() -> None:
        state.copy_(slow(state))

    for i in range(4):
        step()
        assert set(read(state).tolist()) == {i + 1}
    step()
    step()
    assert set(read(state).tolist()) == {6}


def test_results_keep_their_values() -> None:
    state, other = counter(), counter(10)

    @capture
    def step(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state.add_(x)
        other.copy_(slow(other))
        return state * 2, state.clone(), other[1:] + x[1:]

    kept = []
    for _ in range(6):
        pending = state + 100  # not computed before the next step
        kept.append((step(counter(1)), state.clone(), other.cpu(), pending))
    for i, (results, clone, copied, pending) in enumerate(kept, start=1):
        assert [set(result.tolist()) for result in results] == [{2 * i}, {i}, {11 + i}]
        assert (set(clone.tolist()), set(copied.tolist())) == ({i}, {10 + i})
        assert set(pending.tolist()) == {99 + i}


def test_results_that_are_arguments_of_the_next_step() -> None:
    step = capture(lambda x: slow(x) * 1)
    x = first = counter()
    for _ in range(5):
        x = step(x)
    assert (x.tolist(), first.tolist()) == ([5] * 4, [0] * 4)


def test_a_tensor_that_was_copied_from_the_host() -> None:
    """torch_xla may keep the host's values beside the device's."""
    state = torch.arange(4.0).to("xla")
    torch_xla.sync()
    state.cpu()
    step = capture(lambda: state.add_(1).sum())
    for i in range(1, 4):
        assert step().item() == 6 + 4 * i
        assert state.tolist() == [i, i + 1, i + 2, i + 3]
        assert (state * 1).tolist() == [i, i + 1, i + 2, i + 3]


def test_two_threads_and_a_lazy_one() -> None:
    state, count = counter(), 60
    step = capture(lambda: state.add_(1).clone())
    step()
    seen: list[float] = []
    lock = threading.Lock()  # torch_xla's tracing of one tensor is not for two threads

    def lazily() -> None:
        x = counter(3)
        assert (x * 2 + 1).tolist() == [7] * 4

    def captured() -> None:
        with lock:
            result = step()
        seen.append(result[0].item())

    def work(run: Callable[[], None]) -> None:
        for _ in range(count):
            run()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, (captured, captured, lazily)))
    assert sorted(seen) == list(range(2, 2 * count + 2))
    assert state.tolist() == [2 * count + 1] * 4


@pytest.mark.parametrize("others", [1, 3])
def test_calls_do_not_wait_for_the_launch_before(others: int) -> None:
    """Each call uses a result that the call before has yet to compute; `others` only read it."""
    state, weights = counter(), [counter(1) for _ in range(others)]
    step = capture(lambda x: state.copy_(gated(state) + x), check_python=False)
    double = capture(lambda x: (2 * x, *(x * weight for weight in weights)), check_python=False)
    results = [double(step(counter())) for _ in range(2)]
    with closed_gate():
        batch = counter(1)
        step(batch)
        results.append(double(state))
        step(batch)
    assert set(state.tolist()) == {6}
    assert set(results[-1][0].tolist()) == {8}
    assert passed == [True, True]


def test_a_call_takes_many_results_of_a_launch_that_it_does_not_wait_for() -> None:
    """For example, torch.compile's backward program takes the forward program's activations."""
    state = counter()
    make = capture(
        lambda x: (state.copy_(gated(state) + x), [state * i for i in range(100)])[1],
        check_python=False,
    )
    total = capture(lambda *values: torch.stack(values).sum(0), check_python=False)
    for _ in range(2):
        total(*make(counter()))
    with closed_gate():
        result = total(*make(counter(1)))
    assert set(result.tolist()) == {4 * sum(range(100))}
    assert passed == [True]


def test_a_call_writes_to_many_arguments_of_a_launch_that_it_does_not_wait_for() -> None:
    """For example, torch.compile's optimizer writes to tensors that the forward program reads."""
    states = [counter(i) for i in range(100)]
    read = capture(lambda x: gated(x) + torch.stack(states).sum(0), check_python=False)

    @functools.partial(capture, check_python=False)
    def write() -> None:
        for state in states:
            state.add_(1)

    for _ in range(2):
        read(counter())
        write()
    with closed_gate():
        result = read(counter())
        write()
    assert set(result.tolist()) == {1 + sum(range(100)) + 200}
    assert set(states[-1].tolist()) == {99 + 3}
    assert passed == [True]


def test_sync_does_not_wait_for_a_launch_where_it_computes_nothing() -> None:
    state = counter()
    step = capture(lambda: state.copy_(gated(state)), check_python=False)
    for _ in range(2):
        step()
    with closed_gate():
        step()
        torch_xla.sync()
    torch_xla.sync(wait=True)
    assert passed == [True]
    assert set(state.tolist()) == {3}


def test_a_training_step_of_torch_compile_waits_for_no_launch() -> None:
    weight = torch.ones(4).to("xla").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=1)
    forward = torch.compile(lambda x: (weight * gated(x)).sum(), backend="openxla")
    update = torch.compile(optimizer.step, backend="openxla")

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = forward(x)
        loss.backward()
        update()
        torch_xla.sync()
        return loss.detach()

    batch = counter(1)
    for _ in range(3):
        step(batch)
    with closed_gate():
        loss = step(batch)
    torch_xla.sync(wait=True)
    assert passed == [True]
    assert loss.item() == 4 * (1 - 3 * 2) * 2
    assert set(weight.tolist()) == {1 - 4 * 2}


def test_a_result_is_read_while_a_later_step_starts() -> None:
    """On several devices, where XLA:CPU mostly starts a program in a thread that does not copy."""
    code = """
        import faulthandler, threading
        import torch, torch_xla, torch_xla.runtime
        from torch_xla_ext import capture, register_torch_operator

        gate = threading.Event()
        gate.set()

        @torch.library.custom_op("in_flight_test::gated", mutates_args=())
        def gated(x: torch.Tensor) -> torch.Tensor:
            gate.wait(20)
            return x + 1

        gated.register_fake(torch.empty_like)
        register_torch_operator("in_flight_test::gated")
        faulthandler.dump_traceback_later(100, exit=True)
        torch_xla.runtime.use_spmd()
        state, batch = torch.zeros(4, device="xla"), torch.ones(4, device="xla")
        step = capture(
            lambda x: (state.copy_(gated(state) + x), state * 1), check_python=False, verify=False
        )
        latest = [step(batch)[1] for _ in range(3)][-1]
        torch_xla.sync(wait=True)
        was_early = False
        for count in range(3, 63, 2):
            gate.clear()
            threading.Timer(0.3, gate.set).start()
            before = latest
            step(batch)
            latest = step(batch)[1]  # starts when the one before has ended
            assert before.tolist() == [2 * count] * 4
            was_early = not gate.is_set()
            gate.wait()
            assert latest.tolist() == [2 * count + 4] * 4
            if was_early:
                break
        assert was_early
    """
    done = run_script(textwrap.dedent(code), CPU_NUM_DEVICES="2")
    assert done.returncode == 0, done.stderr


def test_steps_that_the_calling_thread_starts() -> None:
    """Such steps come before and after steps that a different thread starts."""
    state = counter()
    add = capture(lambda x: state.add_(x).clone(), check_python=False, starts_here=True)
    double = capture(lambda x: state.mul_(x).clone(), check_python=False)
    slow_add = capture(lambda x: state.copy_(slow(state)) + x, check_python=False)
    expected, results = 0, []
    for i in range(1, 6):
        results += [add(counter(i)), double(counter(2)), slow_add(counter(0)), add(counter(1))]
        expected = 2 * (expected + i) + 2
    assert results[-1].tolist() == [expected] * 4
    assert [result[0].item() for result in results[:4]] == [1, 2, 3, 4]
    assert state.tolist() == [expected] * 4
    assert copy.copy(add)(counter(1)).tolist() == [expected + 1] * 4


def test_an_error_of_a_step_that_the_calling_thread_starts() -> None:
    state, other = counter(), counter()
    good = capture(lambda: other.add_(1).clone(), check_python=False, starts_here=True)
    bad = capture(lambda x: state.copy_(failing(x, state)), check_python=False, starts_here=True)
    for count in range(1, 4):
        with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: payload"):
            bad(counter(1))
            state.cpu()
        state.copy_(counter())
        torch_xla.sync(wait=True)
        assert good().tolist() == [count] * 4


def test_a_failed_launch_cancels_queued_ones() -> None:
    """The state of another step keeps its value; the error is reported once."""
    state, other = counter(), counter()
    good = capture(lambda: other.add_(1).clone(), verify=0)
    gated_step = capture(lambda: state.copy_(gated(state)), check_python=False)
    bad = capture(lambda x: state.copy_(failing(x, state)), verify=0)
    x = counter(1)
    for _ in range(2):
        good()
        gated_step()
    with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: payload"):
        bad(x)
        state.cpu()
    state.copy_(counter())
    with closed_gate():
        gated_step()
        bad(x)
        good()
    with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: payload"):
        torch_xla.sync(wait=True)
        state.cpu()
    before = other[0].item()
    assert before in (2, 3)  # whether the program failed when it was started
    assert good().tolist() == [before + 1] * 4


def failing(x: Tensor, state: Tensor) -> Tensor:
    (result,) = XLAC._xla_gpu_custom_call(
        [x, state], b"\1\1\7" + bytes(13), [[4]], [torch.float32], target="XlaGpuSimpleAdd"
    )
    return result


def test_steps_go_on_after_one_that_failed() -> None:
    state, other = counter(), counter()
    good = capture(lambda: other.add_(1).clone())
    good()

    @capture
    def bad(x: Tensor) -> Tensor:
        state.copy_(failing(x, state))
        return state + 1

    for _ in range(3):
        result = bad(counter(1))
        with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: payload"):
            result.cpu()
        with pytest.raises(RuntimeError):
            state.cpu()
        before = other[0].item()
        assert good().tolist() == [before + 1] * 4
        with pytest.raises(CaptureError, match="state has no value"):
            bad(counter(1))
        assert good().tolist() == [before + 2] * 4
        state.copy_(counter())  # anew: a value of its own again
        torch_xla.sync()
        assert state.tolist() == [0] * 4


def test_a_replay_releases_the_gradients_that_it_replaces() -> None:
    """A replay frees old gradients before it starts, so that only the new ones need memory."""
    state = counter(3)
    replaced, added = (torch.ones(4).to("xla").requires_grad_() for _ in range(2))

    @capture
    def step(x: Tensor) -> None:
        replaced.grad = None
        ((replaced + added) * x * state).sum().backward()

    bad = capture(lambda x: state.copy_(failing(x, state)), verify=0)
    for _ in range(5):
        step(counter(1))
    bad(counter(1))
    with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: payload"):
        state.cpu()
    with pytest.raises(CaptureError, match="state has no value"):
        step(counter(1))
    assert replaced.grad is None
    assert added.grad.tolist() == [15] * 4
    state.copy_(counter(2))
    torch_xla.sync()
    step(counter(1))
    assert (replaced.grad.tolist(), added.grad.tolist()) == ([2] * 4, [17] * 4)


def test_a_program_that_torch_xla_has_forgotten() -> None:
    """A captured step holds its program: the cache of programs may be too small for it."""
    code = """
        import torch
        from torch_xla_ext import capture

        state = torch.zeros(4).to("xla")
        step = capture(lambda: state.add_(1).clone())
        step()
        for i in range(5):
            (torch.ones(2 + i).to("xla") * 2).cpu()
        assert step().tolist() == [2] * 4
    """
    done = run_script(textwrap.dedent(code), XLA_COMPILATION_CACHE_SIZE="2")
    assert done.returncode == 0, done.stderr
