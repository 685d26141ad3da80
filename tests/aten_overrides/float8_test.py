"""Conversions to 8-bit floats: PyTorch's own numbers, bit for bit."""

from collections.abc import Callable

import pytest
import torch

import torch_xla_ext
from aten_overrides import optimized  # noqa: F401

FORMATS = torch.float8_e4m3fn, torch.float8_e5m2


def numbers(dtype: torch.dtype, format: torch.dtype) -> torch.Tensor:
    """All numbers of the format, those halfway between them, their neighbours, and random ones."""
    every = torch.arange(256, dtype=torch.uint8).view(format).float()
    finite = every[every.isfinite()].sort().values
    halfway = (finite[1:] + finite[:-1]) / 2
    close = torch.cat([finite, halfway])
    beyond = torch.tensor([448.1, 464, 464.1, 480, 57345, 61440, 61441, 65536, 1e30])
    others = torch.tensor([torch.inf, torch.nan, 0.0, 1e-30, 2**-10, 2**-17, 1e-45])
    scales = torch.exp2(torch.randint(-20, 18, (20_000,)))
    found = [close, beyond, -beyond, others, -others, torch.randn(20_000) * scales]
    for away in (torch.inf, -torch.inf):
        found.append(torch.nextafter(close, torch.tensor(away)))
    return torch.cat(found).to(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits; every nan is the same, because PyTorch gives it a sign."""
    return torch.where(tensor.float().isnan(), 0x7F, tensor.view(torch.uint8))


def to(x: torch.Tensor, format: torch.dtype) -> torch.Tensor:
    return x.to(format)


def copied(x: torch.Tensor, format: torch.dtype) -> torch.Tensor:
    return torch.empty(x.shape, dtype=format, device=x.device).copy_(x)


@pytest.mark.parametrize("way", [to, copied])
@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_number(dtype: torch.dtype, format: torch.dtype, way: Callable) -> None:
    x = numbers(dtype, format)
    on_device = x.to("xla")
    assert torch.equal(on_device.cpu().isnan(), x.isnan())
    found, expected = way(on_device, format), way(x, format)
    assert found.dtype == format
    wrong = bits(found.cpu()) != bits(expected)
    assert not wrong.any(), (x[wrong], found.cpu()[wrong].float(), expected[wrong].float())


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_other_sources(format: torch.dtype) -> None:
    whole = torch.arange(-600, 600)
    assert torch.equal(bits(whole.to("xla").to(format).cpu()), bits(whole.to(format)))
    (other,) = {*FORMATS} - {format}
    every = torch.arange(256, dtype=torch.uint8).view(other)
    assert torch.equal(bits(every.to("xla").to(format).cpu()), bits(every.to(format)))


def test_captured_and_compiled() -> None:
    x = numbers(torch.float32, torch.float8_e4m3fn)
    expected = bits((x * 2).to(torch.float8_e4m3fn))

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).to(torch.float8_e4m3fn)

    for wrapped in (
        torch_xla_ext.capture(function),
        torch.compile(function, backend="openxla", fullgraph=True),
    ):
        for _ in range(2):
            assert torch.equal(bits(wrapped(x.to("xla")).cpu()), expected)
