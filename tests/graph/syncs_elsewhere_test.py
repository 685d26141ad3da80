"""Functions traced while another thread calls torch_xla.sync() and draws random numbers."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.threads import run_in_threads
from torch import Tensor

from torch_xla_ext import capture

others: list[Tensor] = []


def sync_elsewhere() -> None:
    def work() -> None:
        others.append(torch.rand(2, device="xla"))
        torch_xla.sync()

    run_in_threads(work)


@torch.library.custom_op("syncs_elsewhere::copy", mutates_args=())
def copy_with_sync(x: Tensor) -> Tensor:
    sync_elsewhere()
    return x.clone()


copy_with_sync.register_fake(torch.empty_like)


def traced(way: str, function: Callable) -> Callable:
    if way == "captured":
        return capture(function, check_python=False, verify=0)
    if way == "verified":
        return capture(function, check_python=False, verify=True)
    torch._dynamo.reset()
    return torch.compile(function, backend="openxla", fullgraph=True)


def write(x: Tensor, total: Tensor) -> Tensor:
    total.add_(x)
    x = copy_with_sync(x)
    total.mul_(2)
    return total + x


def write_once(x: Tensor, total: Tensor) -> Tensor:
    total.copy_(x + total)
    return copy_with_sync(x)


def intermediate(x: Tensor, total: Tensor) -> Tensor:
    y = x * 3
    return copy_with_sync(x) + y + total


def write_a_part(x: Tensor, total: Tensor) -> Tensor:
    total[1:].mul_(x[0])
    part = copy_with_sync(total[:2] * 2)
    total[:1].add_(part[1])
    return part


@pytest.mark.parametrize("way", ["captured", "verified", "openxla"])
@pytest.mark.parametrize("function", [write, write_once, intermediate, write_a_part])
def test_values(function: Callable, way: str) -> None:
    total = torch.tensor([1.0, 2.0, 3.0])
    on_device = total.to("xla")
    step = traced(way, function)
    for i in range(4):
        x = torch.tensor([i + 1.0, 2.0, 3.0])
        expected, found = function(x, total), step(x.to("xla"), on_device)
        torch.testing.assert_close(found.cpu(), expected)
        torch.testing.assert_close(on_device.cpu(), total)


@pytest.mark.parametrize("way", ["captured", "verified", "openxla"])
def test_random_numbers(way: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.rand(2, device=x.device)
        return first, copy_with_sync(x) * 0 + torch.rand(2, device=x.device)

    others.clear()
    step = traced(way, function)
    found: list[float] = []
    for _ in range(6):
        for result in step(torch.ones(2, device="xla")):
            found += result.tolist()
    for drawn in others:
        found += drawn.tolist()
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("way", ["captured", "verified"])
def test_training(way: str) -> None:
    """Autograd's thread traces the backward pass, and another thread's sync interrupts it."""

    def trained(device: str) -> list[float]:
        weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]).to(device))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        optimizer.step()

        def train(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            inner = (weight * x).tanh()
            inner.register_hook(lambda gradient: copy_with_sync(gradient * 2))
            scale = torch.tensor([5.0, 0.5]).to(device)
            sync_elsewhere()
            loss = (inner * scale).exp().sum()
            loss.backward()
            sync_elsewhere()
            optimizer.step()
            return loss.detach()

        step = train if device == "cpu" else traced(way, train)
        return [step(torch.tensor([i / 4, 0.5]).to(device)).item() for i in range(5)]

    assert trained("xla") == pytest.approx(trained("cpu"), rel=1e-5)


def test_an_error_ends_the_trace() -> None:
    """Afterwards, other threads compute the tensors that the function wrote to."""
    total = torch.zeros(2, device="xla")

    def fails(x: Tensor) -> Tensor:
        total.add_(x)
        raise ValueError(copy_with_sync(x))

    step = traced("captured", fails)
    for _ in range(2):
        with pytest.raises(ValueError):
            step(torch.ones(2, device="xla"))
    assert total.tolist() == [0, 0]
    total.add_(1)
    sync_elsewhere()
    assert torch_xla._XLAC._xla_capture_data_address(total)
    assert total.tolist() == [1, 1]


def test_a_first_call_that_is_not_captured_keeps_its_random_numbers() -> None:
    made: list[int] = []

    def function(x: Tensor) -> Tensor:
        made.append(0)
        return torch.rand(2, device="xla") + x * 0

    x = torch.ones(2, device="xla")
    step = capture(function)
    results = [step(x).tolist()]
    results.append((torch.rand(2, device="xla") + 0).tolist())
    torch_xla.sync()
    results.append(torch.rand(2, device="xla").tolist())
    assert len({tuple(result) for result in results}) == 3
