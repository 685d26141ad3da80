"""Complex numbers: operators with wrong numbers, dtypes or gradients in upstream torch_xla."""

from collections.abc import Callable

import pytest
import torch
import torch_xla  # noqa: F401
from testing.as_on_the_cpu import check
from testing.ways import run_by

from aten_overrides import optimized  # noqa: F401

CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "abs": lambda z, w: z.abs(),
    "div_number": lambda z, w: z / 2.5,
    "div_complex_number": lambda z, w: z.real / (1 + 2j),
    "div": lambda z, w: z / w,
    "div_real": lambda z, w: z / w.abs(),
    "real_div": lambda z, w: z.real / w,
    "div_in_place": lambda z, w: (z * 1).div_(w),
    "addcdiv": lambda z, w: torch.addcdiv(z, w, z, value=0.5),
    "einsum": lambda z, w: torch.einsum("ij,kj->ik", z, w),
    "norm": lambda z, w: z.norm(),
    "norm_dim": lambda z, w: z.norm(dim=1),
    "sgn": lambda z, w: z.sgn(),
    "sigmoid": lambda z, w: z.sigmoid(),
    "tanh": lambda z, w: z.tanh(),
    "inverse": lambda z, w: torch.linalg.inv(z),
    "transposed_parts": lambda z, w: torch.view_as_real(z).transpose(0, 2),
    "fft_convolution": lambda z, w: torch.fft.ifft(torch.fft.fft(z) * torch.fft.fft(w)).real,
    "rotation": lambda z, w: torch.view_as_real(z * torch.polar(w.abs(), w.angle())).flatten(1),
}


def results(
    case: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], device: str
) -> list[torch.Tensor]:
    """The result, and the gradients of its sum with weights."""
    generator = torch.Generator().manual_seed(0)
    operands = [
        torch.randn(4, 4, dtype=torch.complex64, generator=generator).to(device).requires_grad_()
        for _ in range(2)
    ]
    result = case(*operands)
    weights = torch.linspace(0.5, 2, result.numel(), device=device).view(result.shape)
    total = result * weights
    loss = (total.real + 2 * total.imag if total.is_complex() else total).sum()
    gradients = torch.autograd.grad(loss, operands, allow_unused=True, materialize_grads=True)
    return [result.detach(), *gradients]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_operator(case: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    for found, expected in zip(results(case, "xla"), results(case, "cpu"), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)


# Branch cuts, zeros, and numbers that overflow in between.
SPECIAL = torch.tensor(
    [0, 1, -1, 1j, -1j, 2, -2, 2j, -1 + 1j, 0.5 - 0.5j, 100, -100, 100j, 3e19j], dtype=torch.cfloat
)
OF_SPECIAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bool": lambda z: z.bool(),
    "copy": lambda z: torch.zeros(len(z), dtype=torch.bool, device=z.device).copy_(z),
    "logical_and": lambda z: torch.logical_and(z, z.flip(0)),
    "logical_xor": lambda z: torch.logical_xor(z, torch.ones(len(z), device=z.device)),
    "power by a number": lambda z: z[1:8] ** 1j,
    "power of a number": lambda z: 1j ** z[:10],
    "power of zero": lambda z: torch.zeros(3, device=z.device) ** z[[1, 5, 9]],
} | {
    name: getattr(torch, name)
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log10"),
        *("log1p", "log2", "logical_not", "sin", "sinh"),
    )
}


@pytest.mark.parametrize("name", OF_SPECIAL)
def test_special_numbers(name: str) -> None:
    check(OF_SPECIAL[name], SPECIAL, rtol=1e-5, atol=1e-6)


def test_spectrogram_and_back() -> None:
    x, window = torch.randn(2, 64), torch.hann_window(16)
    spectrum = torch.stft(x.to("xla"), 16, 4, window=window.to("xla"), return_complex=True)
    torch.testing.assert_close(
        spectrum.abs().cpu(), torch.stft(x, 16, 4, window=window, return_complex=True).abs()
    )
    for way in ("lazy", "openxla"):
        inverse = run_by(way, lambda spectrum, window: torch.istft(spectrum, 16, 4, window=window))
        restored = inverse(spectrum, window.to("xla")).cpu()
        torch.testing.assert_close(restored, x[:, : restored.shape[1]], rtol=1e-3, atol=1e-4)


def test_windows_are_broadcast_to_the_batch() -> None:
    windows = torch.randn(1, 3, 4)
    arguments = [2, 8], 1, 4, 2
    found = torch.ops.aten.unfold_backward(windows.to("xla"), *arguments).cpu()
    torch.testing.assert_close(found, torch.ops.aten.unfold_backward(windows, *arguments))


def test_complex128_on_the_host() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex128)
    on_device = z.to("xla")
    assert torch.equal(on_device.cpu(), z)
    assert torch.equal(on_device.to("cpu", torch.complex64), z.to(torch.complex64))
    assert on_device[1].item() == 3 - 4j
    copied = torch.empty_like(z)
    copied.copy_(on_device)
    assert torch.equal(copied, z)
    assert torch.equal(z.to(torch.complex64).to("xla").to(torch.complex128).cpu(), z)
