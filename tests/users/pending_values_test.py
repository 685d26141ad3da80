"""Values that are pending while the buffers that they read are overwritten, in three ways."""

import functools
import threading
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.ways import run_by

import torch_xla_ext


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured"])
def test_a_value_read_before_its_tensor_is_written_to(way: str, device: torch.device) -> None:
    s, x = torch.ones(4, device=device), torch.ones(4, device=device)
    torch_xla.sync()
    add = run_by(way, lambda s, x: s + x)
    add(s, x)
    y = s * 2
    s.add_(1)
    assert add(s, x).tolist() == [3] * 4
    assert y.tolist() == [2] * 4
    torch_xla.sync()  # later programs work, too
    assert (s + y).tolist() == [4] * 4


@pytest.mark.parametrize("way", ["lazy", "openxla"])  # a captured step has the backward pass
def test_a_training_loop_that_logs_a_norm(way: str, device: torch.device) -> None:
    def train(device: torch.device, way: str) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.ones(2, 4).to(device)
        function = run_by(way, lambda x: model(x))
        log = []
        for _ in range(4):
            function(x).square().sum().backward()
            log.append(model.weight.norm().detach())
            optimizer.step()
            optimizer.zero_grad()
        return [value.item() for value in log]

    expected = train(torch.device("cpu"), "lazy")
    assert train(device, way) == pytest.approx(expected, rel=1e-5)


def test_unneeded_buffers_are_still_donated(device: torch.device) -> None:
    """A buffer is kept only if a pending value reads it; other buffers are still donated."""
    read, unread = torch.ones(4, device=device), torch.ones(4, device=device)
    torch_xla.sync(wait=True)
    y = read * 2
    address = {name: _buffer(t) for name, t in (("read", read), ("unread", unread))}
    read.add_(1)
    unread.add_(1)
    torch_xla._XLAC._xla_sync_multi([read, unread], [], True, True)
    assert _buffer(read) != address["read"]
    assert _buffer(unread) == address["unread"]
    assert y.tolist() == [2] * 4


def test_a_value_that_two_tensors_have(device: torch.device) -> None:
    """A line search of LBFGS copies the parameters back, and goes on from there."""
    weight, saved = torch.ones(4, device=device), torch.full((4,), 2.0, device=device)
    torch_xla.sync()
    weight.copy_(saved)
    torch_xla.sync()  # Now both have one buffer.
    for step in range(1, 3):
        weight.add_(1)
        torch_xla.sync()
        assert weight.tolist() == [2 + step] * 4
        assert saved.tolist() == [2] * 4


def _buffer(tensor: torch.Tensor) -> int:
    return torch_xla._XLAC._unsafe_buffer_pointer(tensor)


def test_a_donated_argument_of_a_compiled_function(device: torch.device) -> None:
    torch._dynamo.reset()
    cache = torch.ones(4, device=device)
    torch_xla.sync()
    torch_xla._XLAC._set_buffer_donation(cache, True)

    @torch.compile(backend="openxla")
    def step(cache: torch.Tensor) -> torch.Tensor:
        cache.add_(1)
        return cache.sum()

    step(cache)
    y = cache * 2
    assert step(cache).item() == 12
    assert y.tolist() == [4] * 4
    assert cache.tolist() == [3] * 4


class TestReadsWhileAProgramStarts:
    """A computed value is read without waiting for the start of a later program."""

    @pytest.fixture
    def start(self, device: torch.device) -> Callable[[], torch.Tensor]:
        """Starts a program with many operands, which takes the host some time."""
        operands = [torch.randn(64, 64).to(device) for _ in range(300)]

        @torch_xla_ext.capture
        def step() -> torch.Tensor:
            return functools.reduce(torch.add, operands)

        for _ in range(3):
            step().cpu()
        return step

    def test_values(self, device: torch.device, start: Callable[[], torch.Tensor]) -> None:
        values = torch.randn(5, 3)
        x = values.to(device)
        y = x * 2
        torch_xla.sync(wait=True)
        for tensor, expected in ((x, values), (y, values * 2)):
            into = torch.empty(5, 3)
            running = start()
            into.copy_(tensor)
            assert torch.equal(into, expected)
            assert torch.equal(tensor.cpu(), expected)
            assert torch.equal(tensor.to("cpu", torch.float64), expected.double())
            assert torch.equal(tensor.t().cpu(), expected.t())
            assert tensor.to("cpu", memory_format=torch.contiguous_format).is_contiguous()
            tensor.cpu().zero_()
            assert torch.equal(tensor.cpu(), expected)
            running.cpu()

    def test_values_that_the_program_overwrites(
        self, device: torch.device, start: Callable[[], torch.Tensor]
    ) -> None:
        x = torch.arange(4.0).to(device)
        before = x.detach()
        torch_xla.sync(wait=True)
        for turn in range(1, 4):
            copy = x.clone()
            start()
            x += 1
            torch_xla.sync()
            assert x.cpu().tolist() == before.cpu().tolist() == [turn + i for i in range(4)]
            assert copy.cpu().tolist() == [turn - 1 + i for i in range(4)]

    def test_another_thread_starts_programs(self, device: torch.device) -> None:
        x, y = torch.zeros(1000).to(device), torch.full((1000,), 7.0).to(device)
        done = threading.Event()

        def add() -> None:
            nonlocal x
            while not done.is_set():
                x = x + y
                torch_xla.sync()

        thread = threading.Thread(target=add)
        thread.start()
        try:
            for _ in range(300):
                assert y.cpu().unique().tolist() == [7.0]
                assert x.cpu().unique().numel() == 1
        finally:
            done.set()
            thread.join()
