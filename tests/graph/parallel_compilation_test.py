"""torch_xla_ext.parallel_compilation and the method `prepare` of captured steps."""

import threading
import types
from collections.abc import Callable

import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as metrics
from testing.xla import XLAC
from torch import Tensor, nn

from torch_xla_ext import CaptureError, capture, compiler_options, parallel_compilation


def compiled() -> int:
    data = metrics.metric_data("CompileTime")
    return 0 if data is None else data[0]


def device_tensor(*values: float) -> Tensor:
    return torch.tensor(values).to(torch_xla.device())


def test_a_call_of_a_prepared_step_compiles_nothing() -> None:
    state = device_tensor(1, 2)

    @capture(check_python=False)
    def step(x: Tensor) -> Tensor:
        state.add_(x)
        return state * 11

    step.prepare(device_tensor(3, 4))
    assert state.tolist() == [1, 2]
    before = compiled()
    assert step(device_tensor(3, 4)).tolist() == [44, 66]
    assert step(device_tensor(1, 1)).tolist() == [55, 77]
    assert (compiled(), step.num_captures) == (before, 1)
    step.prepare(device_tensor(5, 5))
    assert (compiled(), step.num_captures) == (before, 1)


class Meeting:
    """Programs that must all be compiled at the same time."""

    def __init__(self, count: int) -> None:
        self._barrier, self._lower = threading.Barrier(count), XLAC._xla_capture_lower

    def lower(self, results: list[Tensor], key: bytes) -> object:
        program = self._lower(results, key)

        def compile_program() -> None:
            self._barrier.wait(timeout=20)
            program.compile()

        return types.SimpleNamespace(compile=compile_program)


def test_programs_are_compiled_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(XLAC, "_xla_capture_lower", Meeting(3).lower)
    step = capture(lambda x: (x * 13).sum(), check_python=False)
    with parallel_compilation(3):
        for size in (2, 3, 4):
            step.prepare(torch.ones(size).to(torch_xla.device()))
    before = compiled()
    results = [step(torch.ones(size).to(torch_xla.device())) for size in (2, 3, 4)]
    assert (compiled(), step.num_captures) == (before, 3)
    assert [result.item() for result in results] == [26, 39, 52]


def test_equal_programs_are_compiled_once() -> None:
    steps = [capture(lambda x: x * 17, check_python=False) for _ in range(3)]
    before = compiled()
    with parallel_compilation(3):
        for step in steps:
            step.prepare(device_tensor(1, 2, 3))
    assert compiled() == before + 1
    assert [step(device_tensor(1, 2, 3)).tolist() for step in steps] == [[17, 34, 51]] * 3


def test_a_call_in_the_block_waits_for_its_program() -> None:
    state = device_tensor(1)

    @capture(check_python=False)
    def step(x: Tensor) -> Tensor:
        state.mul_(x)
        return state + 19

    with parallel_compilation(1):
        step.prepare(device_tensor(2))
        assert step(device_tensor(2)).tolist() == [21]
        assert state.tolist() == [2]
    assert step(device_tensor(3)).tolist() == [25]


def test_training_is_prepared() -> None:
    """Gradients, the random state and Python's attributes are those of the calls."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).to(torch_xla.device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [parameter.tolist() for parameter in model.parameters()]

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.ones(2, 3).to(torch_xla.device())

    def losses(step: Callable[[Tensor], Tensor]) -> list[float]:
        torch_xla.manual_seed(7)
        with torch.no_grad():
            for parameter, values in zip(model.parameters(), before, strict=True):
                parameter.copy_(torch.tensor(values))
        return [step(x).item() for _ in range(3)]

    prepared = capture(step)
    with parallel_compilation():
        prepared.prepare(x)
    assert [parameter.tolist() for parameter in model.parameters()] == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert losses(prepared) == losses(capture(step))


def test_a_step_that_makes_its_state_is_run() -> None:
    made: dict[str, Tensor] = {}

    @capture
    def step(x: Tensor) -> Tensor:
        total = made.setdefault("total", torch.zeros_like(x))
        total += x
        return total * 1

    with pytest.raises(CaptureError, match=r"was run, not prepared, because it made .*made"):
        step.prepare(device_tensor(1, 2))
    assert made["total"].tolist() == [1, 2]
    step.prepare(device_tensor(1, 2))
    assert step(device_tensor(1, 2)).tolist() == [2, 4]


def test_options_of_the_compiler_come_along(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def lower(results: list[Tensor], key: bytes) -> object:
        program = real(results, key)

        def compile_program() -> None:
            found.append(XLAC._xla_compile_options())
            program.compile()

        return types.SimpleNamespace(compile=compile_program)

    real = XLAC._xla_capture_lower
    monkeypatch.setattr(XLAC, "_xla_capture_lower", lower)
    step = capture(lambda x: x * 23, check_python=False)
    with parallel_compilation(1), compiler_options(xla_gpu_autotune_level=0):
        step.prepare(device_tensor(1))
    assert b"xla_gpu_autotune_level" in found[0]


def test_an_error_is_raised_at_the_end_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("no such instruction")

    monkeypatch.setattr(XLAC, "_xla_capture_lower", lambda *_: types.SimpleNamespace(compile=fail))
    step = capture(lambda x: x * 29, check_python=False)
    with pytest.raises(ValueError, match="no such instruction"), parallel_compilation(1):
        step.prepare(device_tensor(1))
    with pytest.raises(ValueError, match="no such instruction"):
        step(device_tensor(1))
    with pytest.raises(ValueError, match="num_threads must be at least 1, but is 0"):
        parallel_compilation(0).__enter__()


def test_an_error_in_the_block_compiles_no_further_program(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, real = threading.Event(), XLAC._xla_capture_lower
    monkeypatch.setattr(
        XLAC, "_xla_capture_lower", lambda *_: types.SimpleNamespace(compile=goes_on.wait)
    )
    first = capture(lambda x: x * 31, check_python=False)
    second = capture(lambda x: x + 37, check_python=False)
    with pytest.raises(KeyError), parallel_compilation(1):
        first.prepare(device_tensor(1))
        second.prepare(device_tensor(1))
        threading.Timer(0.1, goes_on.set).start()
        raise KeyError
    monkeypatch.setattr(XLAC, "_xla_capture_lower", real)
    assert second(device_tensor(1)).tolist() == [38]


def test_a_step_is_not_prepared_by_another() -> None:
    inner = capture(lambda x: x + 1, check_python=False)

    @capture(check_python=False)
    def outer(x: Tensor) -> Tensor:
        inner.prepare(x)
        return x

    with pytest.raises(CaptureError, match=r"prepare\(\) is called by a captured function"):
        outer(device_tensor(1))
