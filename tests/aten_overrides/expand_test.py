"""Writes to an expanded tensor, which PyTorch's own functionalization gets wrong."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.ways import run_by

WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "one row": lambda y: y[1].fill_(2.5),
    "infinity": lambda y: y[0].fill_(-torch.inf),
    "NaN": lambda y: y[1].fill_(torch.nan),
    "a small number": lambda y: y[0].fill_(1e-6),
    "all": lambda y: y.zero_(),
    "all of a column": lambda y: y[..., 0].fill_(7),
    "two rows, one after the other": lambda y: (y[1].fill_(2), y[0].fill_(4)),
    "nothing": lambda y: y[:0].fill_(3),
}
OF_ALL_TYPES = ["all", "all of a column", "two rows, one after the other", "nothing"]
SHAPES = {
    "a new dimension": ((4,), (3, 4)),
    "a dimension of one": ((1, 4), (3, 4)),
    "two": ((2, 1, 4), (3, 2, 5, 4)),
    "none": ((3, 4), (3, 4)),
    "without dimensions": ((), (2, 3)),
}


@pytest.mark.parametrize("way", ["lazy", "captured"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, torch.float32) for name in WRITES]
    + [(name, dtype) for name in OF_ALL_TYPES for dtype in (torch.int64, torch.bool)],
)
def test_writes(name: str, shape: str, dtype: torch.dtype, way: str) -> None:
    own, expanded = SHAPES[shape]

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.expand(expanded)
        WRITES[name](y)
        return y * 1

    numbers = torch.arange(torch.Size(own).numel()) - 2.0
    numbers[:1] = 1e8
    numbers[-1:] = torch.inf if dtype == torch.float32 else 3
    x = numbers.view(own).to(dtype)
    on_xla = x.to("xla")
    result = run_by(way, step)(on_xla)
    torch.testing.assert_close(result.cpu(), step(x), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(on_xla.cpu(), x, rtol=0, atol=0, equal_nan=True)


def test_gradients() -> None:
    gradients = []
    for device in ("cpu", "xla"):
        x = torch.arange(4.0, device=device, requires_grad=True)
        y = (x * 2).expand(3, 4)
        y[1] = 5
        (y * torch.arange(12.0, device=device).view(3, 4)).sum().backward()
        gradients.append(x.grad.cpu())
    assert torch.equal(*gradients)
    torch_xla.sync()
