"""Operators without kernels in torch_xla run on the device, with the CPU's numbers and
gradients."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.as_on_the_cpu import CLOSE, check, with_gradients
from testing.ways import run_by
from torch.nn import functional
from torch_xla.debug import metrics

from aten_overrides import cases

Function = Callable[[torch.Tensor], torch.Tensor]
NAMES = {
    *("addmv", "aminmax", "grid_sampler_2d", "nanmean", "nansum"),
    *("nn.functional.adaptive_avg_pool1d", "nn.functional.adaptive_avg_pool2d"),
    *("nn.functional.channel_shuffle", "nn.functional.fold", "nn.functional.interpolate"),
    *("nn.functional.multi_margin_loss", "nn.functional.pad", "nn.functional.unfold"),
    *("nn.functional.upsample_bilinear", "nn.functional.upsample_nearest", "renorm"),
}
OPERATORS = {name: op for name, op in cases.operators().items() if op.name in NAMES}
# Operators that PyTorch does not decompose, or decomposes wrongly for infinities.
ON_HOST = {
    "aten::_adaptive_avg_pool3d",
    "aten::_adaptive_avg_pool3d_backward",
    "aten::reflection_pad2d",
    "aten::reflection_pad2d_backward",
    "aten::upsample_linear1d",
    "aten::upsample_linear1d_backward",
}


def moved(value: object, device: str) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().to(device, copy=True).detach().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(moved(each, device) for each in value)
    return value


def tensors_of(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for each in value if isinstance(each, torch.Tensor)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_and_gradients(name: str) -> None:
    op = OPERATORS[name]
    samples = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
    for sample in list(samples)[:6]:
        found = []
        for device in ("cpu", "xla"):
            args = [moved(value, device) for value in (sample.input, *sample.args)]
            options = {name: moved(value, device) for name, value in sample.kwargs.items()}
            metrics.clear_all()
            results = tensors_of(op(*args, **options))
            leaves = [each for each in tensors_of(args) if each.requires_grad]
            differentiable = [result for result in results if result.requires_grad]
            weighted = sum(
                (
                    result * torch.linspace(0, 1, result.numel(), device=device).view(result.shape)
                ).sum()
                for result in differentiable
            )
            grads = torch.autograd.grad(weighted, leaves) if differentiable else []
            torch_xla.sync()  # one program
            found.append([each.detach().cpu() for each in (*results, *grads)])
        fell_back = {name for name in metrics.counter_names() if name.startswith("aten::")}
        assert not fell_back - ON_HOST
        for wanted, ours in zip(*found, strict=True):
            torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_forward_mode(mode: str) -> None:
    def resize(x: torch.Tensor) -> torch.Tensor:
        return functional.interpolate(x.square(), scale_factor=2, mode=mode)

    check(lambda x, t: torch.func.jvp(resize, (x,), (t,)), *torch.rand(2, 1, 3, 4, 5), **CLOSE)


@pytest.mark.parametrize("size", [4, 5])
def test_gradient_of_a_fourier_transform_and_its_inverse(size: int) -> None:
    """PyTorch's gradient read sizes that were freed: an error, or the process ended."""

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        back = torch.fft.irfft(torch.fft.rfft(x, dim=1), size, dim=1)
        return torch.autograd.grad(back.cos().sum(), x)[0]

    check(gradient, torch.rand(3, size, 4), **CLOSE)


def written(x: torch.Tensor) -> torch.Tensor:
    result = x.new_empty(3, 2, 4)
    result[0].copy_(x)
    result[1:].copy_(x.flip(0).expand(2, 2, 4))
    return result


@pytest.mark.parametrize(
    "function", [written, lambda x: functional.pad(x, (1, 2), mode="circular")], ids=str
)
def test_tangents_of_writes_to_views(function: Callable[..., torch.Tensor]) -> None:
    """PyTorch makes the written tensor's tangent from its storage, which XLA tensors lack."""
    x, tangent = torch.rand(2, 2, 4)
    check(lambda x, tangent: torch.func.jvp(function, (x,), (tangent,)), x, tangent, **CLOSE)
    check(torch.func.jacfwd(function), x, **CLOSE)


def resized(x: torch.Tensor) -> torch.Tensor:
    return functional.interpolate(x, size=(7, 9), mode="bilinear")


def sampled(x: torch.Tensor) -> torch.Tensor:
    return functional.grid_sample(x, x[:, :2].movedim(1, -1), align_corners=False)


def folded(x: torch.Tensor) -> torch.Tensor:
    return functional.fold(functional.unfold(x, 2), x.shape[2:], 2)


def normed(x: torch.Tensor) -> torch.Tensor:
    """Weights as weight_norm() makes them, along two dimensions, as in wav2vec 2.0."""
    scales = x.amax((1, 2, 3), keepdim=True), x.amax((0, 1, 3), keepdim=True)
    return torch._weight_norm(x, scales[0], 0) + torch._weight_norm(x, scales[1], 2)


@pytest.mark.parametrize("way", ["openxla", "captured"])
@pytest.mark.parametrize("function", [resized, sampled, folded, normed])
def test_compiled_and_captured(function: Function, way: str) -> None:
    """Upstream torch_xla runs these operators outside of the compiled program, on the host."""

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (function(x) ** 2).sum().backward()
        return x.grad

    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    expected, on_device = step(x), x.to("xla")
    torch_xla.sync()
    run = run_by("captured", step) if way == "captured" else step
    if way == "openxla":
        function = run_by(way, function, fullgraph=True)
    for _ in range(2):
        metrics.clear_all()
        torch.testing.assert_close(run(on_device).cpu(), expected, rtol=1e-4, atol=1e-4)
        assert not [name for name in metrics.counter_names() if name.startswith("aten::")]


@pytest.mark.parametrize("way", ["lazy", "captured", "openxla"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multilabel_margin_loss(reduction: str, way: str) -> None:
    """PyTorch's decomposition adds losses of class 0 for targets behind the first -1."""
    loss = functools.partial(functional.multilabel_margin_loss, reduction=reduction)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[2, 0, -1, 3], [-1, 1, 2, 3], [3, 1, 0, 2]])
    for rows in (slice(None), 0):
        check(with_gradients(loss), x[rows], target[rows], way=way, **CLOSE)


@pytest.mark.parametrize("size", [(11, 13), (30, 50), (20, 12)])
@pytest.mark.parametrize("align_corners", [False, True])
def test_an_image_of_bytes(size: tuple[int, int], align_corners: bool) -> None:
    """All numbers equal PyTorch's, which rounds each dimension's results, with 16-bit weights."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (2, 3, 20, 24), dtype=torch.uint8, generator=generator)
    options = {"mode": "bilinear", "align_corners": align_corners}
    check(lambda x: functional.interpolate(x, size, **options), image)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.einsum("ij,kj->ik", x, x * 2),
        lambda x: functional.max_pool2d(x[None], 2),
        lambda x: functional.max_pool3d(x[None, None], (1, 2, 2)),
    ],
)
def test_tangents_of_upstreams_own_functions(function: Function) -> None:
    """Upstream's autograd functions define no forward-mode AD."""
    x = torch.arange(16.0).view(4, 4).sin()
    check(lambda x: torch.func.jvp(function, (x,), (x.cos(),))[1], x, **CLOSE)
    check(torch.func.jacfwd(function), x, **CLOSE)
