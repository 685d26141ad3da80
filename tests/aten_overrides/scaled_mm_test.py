"""torch._scaled_mm, the product of matrices of 8-bit floats, against PyTorch on the CPU."""

from collections.abc import Iterator

import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as metrics
from testing.ways import run_by
from torch_xla import backends

from aten_overrides import optimized  # noqa: F401

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture(autouse=True, params=["default", "highest"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    backends.set_mat_mul_precision(request.param)
    yield request.param
    backends.set_mat_mul_precision("default")


def operands(
    m: int, k: int, n: int, types: tuple[torch.dtype, torch.dtype] = (E4M3, E4M3)
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Matrices [m, k] and [k, n], which is a view of [n, k], and a scale of each."""
    generator = torch.Generator().manual_seed(m + k + n)
    a = torch.randn(m, k, generator=generator).to(types[0])
    b = torch.randn(n, k, generator=generator).to(types[1])
    return a, b.t(), torch.tensor(0.37), torch.tensor([0.011])


def on_device(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Copies tensors to the device; a transposed view stays a view."""
    a, b, *others = tensors
    return [a.to("xla"), b.t().to("xla").t(), *(t.to("xla") for t in others)]


def unrounded(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()) * s.double() * t.double()


@pytest.mark.parametrize("types", [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
@pytest.mark.parametrize("shape", [(16, 64, 32), (3, 5, 7), (1, 128, 16), (2, 0, 3)], ids=str)
def test_one_scale(shape: tuple[int, int, int], types: tuple[torch.dtype, torch.dtype]) -> None:
    """All result dtypes run in one process, because their programs have the same operands."""
    tensors = operands(*shape, types)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    args = on_device(tensors)
    found = [torch._scaled_mm(*args, out_dtype=dtype) for dtype in dtypes]
    torch_xla.sync()
    for result, dtype in zip(found, dtypes, strict=True):
        assert result.dtype == dtype
        # For sums of no terms, PyTorch returns uninitialized memory.
        expected = torch._scaled_mm(*tensors, out_dtype=dtype) if shape[1] else torch.zeros(2, 3)
        torch.testing.assert_close(result.cpu(), expected.to(dtype), rtol=2**-7, atol=1e-6)
    torch.testing.assert_close(found[0].cpu().double(), unrounded(*tensors), rtol=1e-5, atol=1e-6)


def test_result_in_float8() -> None:
    """The first matrix's dtype is the default; results out of its range are nan, as in PyTorch."""
    tensors = operands(16, 64, 32)
    for scale in (1.0, 50.0):
        tensors = (*tensors[:2], torch.tensor(scale), torch.tensor(1.0))
        found, expected = torch._scaled_mm(*on_device(tensors)), torch._scaled_mm(*tensors)
        assert found.dtype == E4M3
        assert torch.equal(expected.float().isnan(), found.cpu().float().isnan())
        torch.testing.assert_close(
            found.cpu().float(), expected.float(), rtol=2**-3, atol=2**-9, equal_nan=True
        )
    assert expected.float().isnan().any()


def test_scales_of_rows() -> None:
    """Scales of rows, which PyTorch supports on CUDA only."""
    a, b, *_ = operands(16, 64, 32)
    s, t = torch.rand(16, 1) + 0.5, torch.rand(1, 32) + 0.5
    args = on_device((a, b, s, t))
    found = [torch._scaled_mm(*args, out_dtype=d) for d in (torch.float32, torch.bfloat16)]
    expected = unrounded(a, b, s, t)
    torch.testing.assert_close(found[0].cpu().double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1].cpu(), expected.bfloat16(), rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bias(dtype: torch.dtype) -> None:
    tensors, bias = operands(16, 64, 32), torch.randn(32).to(dtype)
    found = torch._scaled_mm(*on_device(tensors), bias=bias.to("xla"), out_dtype=dtype)
    expected = torch._scaled_mm(*tensors, bias=bias, out_dtype=dtype)
    torch.testing.assert_close(found.cpu(), expected)


def test_scale_of_the_result() -> None:
    tensors, scale = operands(16, 64, 32), torch.tensor(0.5)
    found = torch._scaled_mm(*on_device(tensors), scale_result=scale.to("xla"))
    expected = torch._scaled_mm(*tensors, scale_result=scale)
    torch.testing.assert_close(found.cpu().float(), expected.float())


@pytest.mark.parametrize("way", ["lazy", "captured", "openxla"])
def test_layer(way: str) -> None:
    """A linear layer that rounds its input runs on the device only."""

    def layer(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        rounded = x.clamp(-448, 448).to(E4M3)
        return torch._scaled_mm(rounded, weight.t(), scale, scale, out_dtype=torch.bfloat16)

    run = run_by(way, layer)
    metrics.clear_counters()
    scale = torch.tensor(0.5)
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)).to(E4M3)
    for seed in range(3):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(seed)).bfloat16() * 300
        found = run(x.to("xla"), weight.to("xla"), scale.to("xla"))
        torch.testing.assert_close(found.cpu(), layer(x, weight, scale), rtol=2**-7, atol=1e-3)
    assert "aten::_scaled_mm" not in metrics.counter_names()  # of operators that ran on the CPU


def test_program(precision: str) -> None:
    """By default the operands of the dot are in float8, so that XLA:GPU calls cuBLASLt.

    With more precision, XLA:GPU finds the conversions, and has cuBLASLt add up in float32.
    """
    a, b, s, t = on_device(operands(16, 64, 32))
    result = torch._scaled_mm(a, b, s, t, out_dtype=torch.bfloat16)
    program = torch_xla._XLAC._get_xla_tensors_hlo([result])
    (dot,) = (line for line in program.splitlines() if " dot(" in line)
    assert "f32[16,32]" in dot.split(" dot(")[0]
    if precision == "default":
        assert dot.count("f8e4m3fn[") == 2
    else:
        assert "operand_precision={highest,highest}" in dot


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({0: torch.zeros(16, 48).to(E4M3)}, r"and \[k, n\], but got \[16, 48\] and \[64"),
        ({0: torch.zeros(16, 64)}, r"float8_e5m2, but got Float and Float8_e4m3fn; convert"),
        (
            {2: torch.ones(16, 1)},
            r"scale_a \[16, 1\] and scale_b \[1, 32\], but got Float\[16, 1\]",
        ),
        ({2: torch.ones(1).bfloat16()}, r"scales of float32, .* but got BFloat16\[1\]"),
        ({4: torch.zeros(5)}, r"a bias \[32\], but got \[5\]"),
    ],
    ids=["shapes", "types", "rows", "scale", "bias"],
)
def test_errors(changed: dict[int, torch.Tensor], text: str) -> None:
    args: list[torch.Tensor | None] = [*on_device(operands(16, 64, 32)), None]
    for position, tensor in changed.items():
        args[position] = tensor.to("xla")
    with pytest.raises(RuntimeError, match="torch._scaled_mm: expected .*" + text):
        torch._scaled_mm(*args, out_dtype=torch.bfloat16)
