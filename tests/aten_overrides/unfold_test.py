"""Writes to windows of a tensor, which are a view of it."""

import pytest
import torch
from testing.ways import run_by


@pytest.mark.parametrize(
    "dim, size, step", [(1, 3, 3), (1, 2, 3), (0, 1, 2), (-1, 8, 8), (1, 4, 5)]
)
def test_elements_outside_of_the_windows_stay(dim: int, size: int, step: int) -> None:
    def written(device: str) -> torch.Tensor:
        x = torch.arange(32.0).view(4, 8).to(device)
        windows = x.unfold(dim, size, step)
        windows.add_(100)
        windows[..., 0].mul_(2)
        return torch.stack([x, x.clone()]).cpu()

    assert torch.equal(written("xla"), written("cpu"))


@pytest.mark.parametrize("way", ["captured", "openxla"])
def test_traced(way: str) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.unfold(1, 3, 3).add_(1)
        return y

    run = run_by(way, step)
    for i in range(3):
        x = torch.arange(16.0).view(2, 8) + i
        assert torch.equal(run(x.to("xla")).cpu(), step(x))


def test_gradients() -> None:
    def gradient(device: str) -> torch.Tensor:
        x = torch.arange(16.0).view(2, 8).to(device).requires_grad_()
        y = x * x
        y.unfold(1, 3, 4).mul_(3)
        y.sum().backward()
        return x.grad.cpu()

    assert torch.equal(gradient("xla"), gradient("cpu"))


def test_windows_that_overlap_cannot_be_written_to() -> None:
    """PyTorch writes to them in an undefined order. overlap_test.py has other writes."""
    x = torch.zeros(2, 8, device="xla")
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers"):
        x.unfold(1, 3, 2).add_(1)
    assert torch.equal(x.cpu(), torch.zeros(2, 8))


def test_other_devices_keep_pytorchs_kernel() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.unfold(0, 2, 2) * 2

    x = torch.arange(6.0)
    found = torch.func.functionalize(step)(x)
    assert torch.equal(found, step(x))
