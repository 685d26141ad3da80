"""torch.histc gives PyTorch's counts on CUDA, in PyTorch's dtypes, without the host."""

import math

import pytest
import torch
import torch_xla.debug.metrics as metrics
from testing.ways import run_by

from aten_overrides import optimized  # noqa: F401

RANGES = [(10, 0, 0), (7, -3, 9), (32, 0, 31), (5, -2.5, 3.25), (600, 0, 1000)]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float32, torch.float64]


def expected(x: torch.Tensor, bins: int, first: float, last: float) -> torch.Tensor:
    """The counts by the formula of PyTorch's CUDA kernel, in that kernel's types."""
    dtype = x.dtype if x.is_floating_point() else torch.int64
    values, ends = x.flatten().to(dtype), torch.tensor([first, last]).to(dtype)
    if ends[0] == ends[1] and len(values):
        ends = torch.stack([values.min(), values.max()])
    if ends[0] == ends[1]:
        ends = ends + torch.tensor([-1, 1])
    values = values[(values >= ends[0]) & (values <= ends[1])]
    mode = None if dtype.is_floating_point else "trunc"
    index = torch.div((values - ends[0]) * bins, ends[1] - ends[0], rounding_mode=mode)
    return torch.bincount(index.long().clamp(max=bins - 1), minlength=bins).to(x.dtype)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_counts(dtype: torch.dtype) -> None:
    metrics.clear_counters()
    generator = torch.Generator().manual_seed(0)
    for shape in [(0,), (1,), (30, 40)]:
        x = torch.randn(shape, generator=generator) * 20
        x = (x.abs() if dtype == torch.uint8 else x).to(dtype)
        for bins, first, last in RANGES:
            found = torch.histc(x.to("xla"), bins, first, last)
            wanted = expected(x, bins, first, last)
            assert found.dtype == dtype
            assert torch.equal(found.cpu(), wanted), (shape, bins, first, last)
            if dtype in FLOATS:
                assert torch.equal(torch.histc(x, bins, first, last), wanted)
    assert not [name for name in metrics.counter_names() if name.startswith("aten::")]


@pytest.mark.parametrize("way", ["captured", "openxla"])
def test_in_a_program(way: str) -> None:
    function = run_by(way, lambda x: torch.histc(x, 4, 0, 3))
    for seed in range(3):
        x = torch.randint(0, 4, (20,), generator=torch.Generator().manual_seed(seed)).int()
        assert torch.equal(function(x.to("xla")).cpu(), expected(x, 4, 0, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bits(dtype: torch.dtype) -> None:
    """PyTorch has 16-bit histograms on the CPU only, and rounds the distances."""
    x = (torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 20).to(dtype)
    found = torch.histc(x.to("xla"), 50, -30, 30)
    assert found.dtype == dtype
    assert torch.equal(found.cpu(), expected(x.float(), 50, -30, 30).to(dtype))


def test_wrong_arguments() -> None:
    x = torch.randn(9, device="xla")
    for args, text in [
        ((x, 0), "bins must be > 0"),
        ((x, 5, 3, 1), "max must be larger than min"),
        ((x, 5, 0, math.inf), r"range of \[0, inf\] is not finite"),
        ((x, 5, math.nan, 1), r"range of \[nan, 1\] is not finite"),
        ((x.bool(), 5), "\"histc\" not implemented for 'Bool'"),
        ((x.cfloat(), 5), "\"histc\" not implemented for 'ComplexFloat'"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            torch.histc(*args)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_range_that_is_not_finite(number: float) -> None:
    """PyTorch reads the data's range and raises; the XLA kernel reads no value on the host."""
    x = torch.tensor([1.0, number, 2.0])
    with pytest.raises(RuntimeError, match="is not finite"):
        torch.histc(x, 5)
    assert torch.histc(x.to("xla"), 5).isnan().all()
    assert torch.equal(torch.histc(x.to("xla"), 5, 0, 4).cpu(), torch.histc(x, 5, 0, 4))
