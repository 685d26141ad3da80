"""Functions that torch_xla_ext.capture refuses: the errors, and that tensors keep their values."""

import gc
import importlib
import logging
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_xla
from testing.scripts import run_script
from testing.xla import XLAC, compilations

import torch_xla_ext
from torch_xla_ext import CaptureError, capture


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device="xla")


cache = torch.zeros(3, device="xla")
events: list[int] = []
host = torch.ones(3)


class Engine:
    calls = 0

    def __init__(self) -> None:
        self.count, self.tokens = 0, ones(3)

    def counts(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x + 1

    def counts_over_its_class(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + 1

    def counts_in_its_class(self, x: torch.Tensor) -> torch.Tensor:
        Engine.calls += 1
        return x + 1

    def rebinds(self, x: torch.Tensor) -> torch.Tensor:
        self.tokens = x + 1
        return x


class Empty:
    def makes_an_attribute(self, x: torch.Tensor) -> torch.Tensor:
        self.made = getattr(self, "made", 0) + 1
        return x + 1


def assigns_a_global(x: torch.Tensor) -> torch.Tensor:
    global cache
    cache = x + 1
    return x


def assigns_data(x: torch.Tensor) -> torch.Tensor:
    cache.data = x + 1
    return x


def appends(x: torch.Tensor) -> torch.Tensor:
    events.append(1)
    return x + 1


def writes_on_the_host(x: torch.Tensor) -> torch.Tensor:
    host.add_(1)
    return x + 1


REFUSED = {
    "item": (lambda x: x * x.sum().item(), "reads the value of a tensor float32 .* by item"),
    "bool": (lambda x: x if x.sum() > 0 else -x, "by __bool__"),
    "print": (lambda x: (print(x), x)[1], "by __repr__"),
    "format": (lambda x: (f"{x.sum()}", x)[1], "by __format__"),
    "tolist": (lambda x: x * x.tolist()[0], "by tolist"),
    "cpu": (lambda x: x.cpu(), "by cpu"),
    "to": (lambda x: x.to("cpu"), "by to"),
    "nonzero": (lambda x: torch.equal(x, x), "on the host"),
    "sync": (lambda x: (torch_xla.sync(), x)[1], "remove the call"),
    "random": (lambda x: x * random.random(), "random numbers on the host"),
    "numpy": (lambda x: x * np.random.rand(), r"random numbers on the host \(numpy"),
    "torch.rand": (lambda x: x * torch.rand(3).to("xla"), "random numbers on the host"),
    "host result": (lambda x: torch.zeros(3), "is on cpu"),
    "data": (assigns_data, r"assigns .*cache\.data"),
    "gradient": (lambda x: x.requires_grad_() * 2, "requires a gradient"),
    "shape": (lambda x: x.unsqueeze_(0), r"unsqueeze_\(\) changes .* argument 0, .* unsqueeze\(\)"),
    "size": (lambda x: x.resize_(1, 3), r"resize_\(\) changes .* argument 0, .* reshape\(\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_functions_keep_tensors(name: str) -> None:
    function, text = REFUSED[name]
    values = ones(3)

    def step(x: torch.Tensor) -> torch.Tensor:
        values.add_(1)
        return function(x)

    captured = capture(step)
    for _ in range(2):
        with pytest.raises(CaptureError, match=text):
            captured(ones(3))
    assert values.tolist() == [1, 1, 1]
    assert captured.num_captures == 0


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (Engine().counts, "count"),
        (Engine().counts_over_its_class, "calls"),
        (Engine().counts_in_its_class, "calls"),
        (Empty().makes_an_attribute, "made"),
        (Engine().rebinds, "tokens"),
        (appends, "events"),
        (writes_on_the_host, "host"),
        (assigns_a_global, "cache"),
    ],
)
def test_effects_in_python(function: Callable, name: str) -> None:
    """The first call may have side effects; in the second one they are an error."""
    captured = capture(function)
    assert isinstance(captured(ones(3)), torch.Tensor)
    with pytest.raises(CaptureError, match=f"{name}.* at each call"):
        captured(ones(3))


LIBRARY = """
calls, _cached = 0, None

def _cache():
    global _cached
    if _cached is None:
        _cached = object()

def count():
    global calls
    calls += 1

def both(x):
    _cache()
    count()
    return x + 1

def cached(x):
    _cache()
    return x + 1
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A library's module. Its import assigns globals that its functions change."""
    (tmp_path / "a_library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    yield "a_library"
    sys.modules.pop("a_library", None)


def test_import(library: str) -> None:
    step = capture(lambda x: x + importlib.import_module(library).calls)
    assert step(ones(3)).tolist() == [1, 1, 1]
    assert step.num_captures == 1


def test_lazy_caches(library: str) -> None:
    """The call that fills a cache of a library is not captured, the next one is."""
    importlib.import_module(library)
    step = capture(lambda x: sys.modules[library].cached(x))
    for captures in (0, 1, 1):
        assert step(ones(3)).tolist() == [2, 2, 2]
        assert step.num_captures == captures


def test_counts_of_a_library(library: str) -> None:
    importlib.import_module(library)
    step = capture(lambda x: sys.modules[library].both(x))
    assert step(ones(3)).tolist() == [2, 2, 2]
    with pytest.raises(CaptureError, match=r"the global a_library\.calls at each call"):
        step(ones(3))


def test_first_einsum_of_a_process() -> None:
    """The first einsum imports opt_einsum, where that is installed."""
    script = """
import torch, torch_xla_ext
x = torch.arange(6.0).reshape(2, 3).to("xla")
step = torch_xla_ext.capture(lambda x: torch.einsum("ab,cb->ac", x, x))
print(step(x).tolist(), step.num_captures)
"""
    result = run_script(script)
    assert result.stdout == "[[5.0, 14.0], [14.0, 50.0]] 1\n", result.stderr


def test_optimizer_that_counts_on_the_host() -> None:
    weight = torch.nn.Parameter(ones(3))
    optimizer = torch.optim.Adam([weight])

    def step(x: torch.Tensor) -> torch.Tensor:
        (weight * x).sum().backward()
        optimizer.step()
        return x

    captured = capture(step)
    captured(ones(3))
    with pytest.raises(CaptureError, match=r"\['step'\] at each call.*capturable=True"):
        captured(ones(3))


def test_host_tensors_as_arguments() -> None:
    with pytest.raises(CaptureError, match=r"argument 0\['x'\] is a tensor on cpu"):
        capture(lambda d: d["x"])({"x": torch.ones(3)})


def test_host_values_are_compared() -> None:
    array, tensor = np.ones(3, np.float32), torch.ones(3)
    step = capture(lambda x: x + torch.tensor(array).to("xla") + tensor.to("xla"))
    assert step(ones(3)).tolist() == [3] * 3
    array += 1
    assert step(ones(3)).tolist() == [4] * 3
    tensor += 1
    assert step(ones(3)).tolist() == [5] * 3


def test_classes_that_change() -> None:
    class Settings:
        scale = 2.0

    class Own(Settings):
        pass

    settings = Own()
    captured, x = capture(lambda x: x * settings.scale), torch.arange(3.0).to("xla")
    captured(x)
    for owner, scale in [(Settings, 3.0), (Own, 4.0), (settings, 5.0)]:
        owner.scale = scale
        for _ in range(2):
            assert captured(x).tolist() == (x * scale).tolist()
    assert captured.num_captures == 4
    del settings.scale
    assert captured(x).tolist() == (x * 4.0).tolist()
    assert captured.num_captures == 4


def test_saved_by_a_forward_pass_outside() -> None:
    weight = ones(3).requires_grad_()
    loss = [(weight * weight.detach().clone().add_(1)).sum()]
    torch_xla.sync()

    def step() -> None:
        loss[0].backward()

    with pytest.raises(CaptureError, match="neither an argument"):
        capture(step)()


def test_max_captures(caplog: pytest.LogCaptureFixture) -> None:
    step = capture(lambda x, n: x * n, max_captures=3)
    with caplog.at_level(logging.INFO, "torch_xla_ext.capture"):
        for n in range(3):
            step(ones(2), n)
        step(ones(2), 1)
        with pytest.raises(CaptureError, match=r"captured 3 times.*argument 1 changed from 2 to 3"):
            step(ones(2), 3)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["INFO", "WARNING", "INFO", "WARNING", "INFO"]
    assert "captured again (2 of at most 3): argument 1 changed from 0 to 1" in caplog.text
    with pytest.raises(ValueError, match="at least 1"):
        capture(step, max_captures=0)
    with pytest.raises(TypeError, match="needs a function"):
        capture(3)


def test_why_it_is_captured_again(caplog: pytest.LogCaptureFixture) -> None:
    step = capture(lambda d: (d["x"] * 2, d["y"].detach() + 1))
    base = ones(4, 8)
    calls = [
        (ones(4, 8), ones(2)),
        (ones(5, 8), ones(2)),
        (ones(5, 8).bfloat16(), ones(2)),
        (ones(5, 8).bfloat16(), ones(2).requires_grad_()),
        (base, ones(4, 8)),
        (base, base.view(4, 8)),
        (base, ones(8, 4).t().contiguous().t().t()),
    ]
    with caplog.at_level(logging.WARNING, "torch_xla_ext.capture"):
        for x, y in calls:
            step({"x": x, "y": y})
    texts = [record.getMessage().partition(" at most 8): ")[2] for record in caplog.records]
    assert texts == [
        "argument 0['x'] changed from float32[4, 8] to float32[5, 8]",
        "argument 0['x'] changed from float32[5, 8] to bfloat16[5, 8]",
        "argument 0['y'] changed from float32[2] to float32[2] (requires_grad)",
        "argument 0['x'] changed from bfloat16[5, 8] to float32[4, 8]",
        "argument 0['y'] changed from float32[4, 8] to float32[4, 8] (view)",
        "the memory that arguments share changed",
    ]


def test_more_shapes_than_captures() -> None:
    step = capture(lambda x, n: x * n, max_captures=2)
    step(ones(4, 8), 1)
    step(ones(5, 8), 1)
    with pytest.raises(CaptureError, match="Pass changing values as tensors, or increase"):
        step(ones(5, 8), 2)
    text = (
        r"captured 2 times, .*; now argument 0 changed from float32\[5, 8\] to float32\[6, 8\]\. "
        "Pad tensors to a few sizes, or increase max_captures"
    )
    with pytest.raises(CaptureError, match=text):
        step(ones(6, 8), 1)


def test_shapes_and_modes() -> None:
    step = capture(lambda x: x @ x.t())
    for shape, dtype in (
        ((2, 3), torch.float32),
        ((3, 2), torch.float32),
        ((2, 3), torch.bfloat16),
    ):
        assert step(ones(*shape).to(dtype)).shape == (shape[0],) * 2
    assert step.num_captures == 3
    with torch.no_grad():
        step(ones(2, 3))
    assert step.num_captures == 4


def test_nothing_is_kept_alive() -> None:
    state, argument, held = [ones(3), ones(3)], ones(3), [Engine()]
    step = capture(lambda x: (state[0].add_(x), held[0].tokens * state[1])[1])
    result = step(argument)
    references = [weakref.ref(x) for x in (*state, argument, held[0], held[0].tokens, result)]
    state.clear()
    held.clear()
    del argument, result
    gc.collect()
    alive = [reference() is not None for reference in references]
    assert alive == [False] * 6


def test_custom_calls() -> None:
    table = torch.zeros(4, 8, 1, 4, device="xla")

    @capture
    def step(tokens: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        torch_xla_ext.ops.kv_cache_update(tokens, tokens, slots, table, table.clone())
        return tokens + 1

    tokens = ones(2, 1, 4)
    for _ in range(2):
        step(tokens, torch.tensor([1, 9], device="xla"))
    assert table.sum().item() == 8


def test_a_result_that_is_dropped() -> None:
    state = ones(3)
    step = capture(lambda: state.add_(1).sum())
    step()
    step()
    before = compilations()
    assert step().item() == 12
    assert compilations() <= before + 1


def test_a_kernel_that_fails() -> None:
    """Reading a result raises the kernel's error, at each call; other steps go on."""
    broken = b"\1\1\7" + bytes(13)
    state = ones(3)

    def add(x: torch.Tensor) -> torch.Tensor:
        (result,) = XLAC._xla_gpu_custom_call(
            [x, x], broken, [[3]], [torch.float32], target="XlaGpuSimpleAdd"
        )
        return result

    step = capture(add)
    for _ in range(3):
        result = step(state)
        with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: payload"):
            result.cpu()
    other = capture(lambda x: state.add_(x).clone())
    assert other(ones(3)).tolist() == [2, 2, 2]
    assert step.num_captures == 1


def test_state_that_a_failed_program_was_to_write() -> None:
    state = ones(3)

    @capture
    def step(x: torch.Tensor) -> None:
        (result,) = XLAC._xla_gpu_custom_call(
            [x, state], b"\1\1\7" + bytes(13), [[3]], [torch.float32], target="XlaGpuSimpleAdd"
        )
        state.copy_(result)

    step(ones(3))
    with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: payload"):
        state.cpu()
    if torch_xla.runtime.device_type() == "CUDA":
        step(ones(3))  # the value itself is an error, which the next program passes on
        with pytest.raises(RuntimeError, match="XlaGpuSimpleAdd: payload"):
            state.cpu()
    else:
        text = r"state has no value.*failed: create the tensor again"
        with pytest.raises(CaptureError, match=text):
            step(ones(3))
