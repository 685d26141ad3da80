"""Results that are copies, and results that share memory with their source, as in PyTorch."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from testing.as_on_the_cpu import CLOSE, check, check_calls, with_gradients
from testing.ways import run_by

LAST = torch.channels_last

# Functions of a tensor of shape (2, 3).
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "t.contiguous": lambda x: x.t().contiguous(),
    "mT.contiguous": lambda x: x.mT.contiguous(),
    "t.t.contiguous": lambda x: x.t().t().contiguous(),
    "columns.contiguous": lambda x: x[:, 1:].contiguous(),
    "column.contiguous": lambda x: x[:, 1].contiguous(),
    "row.contiguous": lambda x: x[1].contiguous(),
    "expand.contiguous": lambda x: x[:1].expand(2, 3).contiguous(),
    "diagonal.contiguous": lambda x: x.diagonal().contiguous(),
    "unbind.contiguous": lambda x: x.unbind(1)[0].contiguous(),
    "channels_last": lambda x: x.view(1, 2, 1, 3).contiguous(memory_format=LAST),
    "one channel": lambda x: x.view(1, 1, 2, 3).contiguous(memory_format=LAST),
    "reshape": lambda x: x.reshape(-1),
    "t.reshape": lambda x: x.t().reshape(-1),
    "columns.reshape": lambda x: x[:, 1:].reshape(2, 2, 1),
    "columns.reshape(-1)": lambda x: x[:, 1:].reshape(-1),
    "expand.reshape": lambda x: x[:1].expand(2, 3).reshape(-1),
    "heads": lambda x: x.view(1, 2, 3).transpose(1, 2).reshape(1, 3, 2),
    "merged heads": lambda x: x.view(1, 2, 3).transpose(0, 1).reshape(2, 3),
    "t.flatten": lambda x: x.t().flatten(),
    "flatten": lambda x: x.flatten(),
    "flatten of one": lambda x: x.t().flatten(1, 1),
    "t.ravel": lambda x: x.t().ravel(),
    "ravel": lambda x: x.ravel(),
    "t.reshape_as": lambda x: x.t().reshape_as(x),
    "clone": lambda x: x.t().clone(),
    "float": lambda x: x.t().float(),
    "squeeze": lambda x: x[:, None].squeeze(1),
    "split": lambda x: x.tensor_split(2)[0],
}


@pytest.mark.parametrize("way", ["lazy", "openxla", "captured", "inference"])
@pytest.mark.parametrize("written", ["source", "result"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_writes(name: str, written: str, way: str) -> None:
    def step(x: torch.Tensor) -> list[torch.Tensor]:
        x = x * 1
        y = FUNCTIONS[name](x)
        (x if written == "source" else y).add_(100)
        return [x, y]

    calls = [(torch.arange(6.0).view(2, 3) * factor,) for factor in range(1, 4)]
    if way == "inference":
        check_calls(torch.inference_mode()(step), calls, "lazy")
    else:
        check_calls(step, calls, way)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: x[:],
    "transposed": lambda x: x.t(),
    "columns": lambda x: x[:, 1:],
    "rows": lambda x: x[1:],
    "every second": lambda x: x[::2],
    "from columns": lambda x: x.t().contiguous().t(),
}
COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "ravel": lambda x: x.t().ravel(),
}


@pytest.mark.parametrize("way", ["openxla", "captured"])
@pytest.mark.parametrize("written", ["source", "result"])
@pytest.mark.parametrize("name", COPIES)
def test_arguments_that_are_views(name: str, written: str, way: str) -> None:
    """One function is called with each kind of view, because it copies some kinds and not
    others."""

    def step(x: torch.Tensor) -> torch.Tensor:
        y = COPIES[name](x)
        (x if written == "source" else y).add_(100)
        return y * 1

    run = run_by(way, step)
    for factor in range(1, 3):
        for kind, view in VIEWS.items():
            x = torch.arange(12.0).view(4, 3) * factor
            on_xla = x.to("xla")
            own, expected = view(on_xla), view(x)
            result = step(expected)
            assert torch.equal(run(own).cpu(), result), kind
            assert torch.equal(own.cpu(), expected), kind
            assert torch.equal(on_xla.cpu(), x), kind


@pytest.mark.parametrize("way", ["openxla", "captured"])
def test_views_that_share_memory(way: str) -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x.contiguous()
        z.add_(100)
        return z + y

    run = run_by(way, step)
    for view in (lambda x: x.t(), lambda x: x[:], lambda x: x[:, 1:].t()[:, 1:]):
        for _ in range(3):
            x = torch.arange(9.0).view(3, 3)
            on_xla = x.to("xla")
            y = x[: view(x).size(0), : view(x).size(1)]
            result = run(view(on_xla), on_xla[: y.size(0), : y.size(1)])
            assert torch.equal(result.cpu(), step(view(x), y))
            assert torch.equal(on_xla.cpu(), x)


def test_compiled_gradients_of_views() -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.contiguous() * y.reshape(-1)).sum()

    run = torch.compile(loss, backend="openxla")
    tensors = [torch.rand(6, 6, requires_grad=True), torch.rand(3, 2, requires_grad=True)]
    own = [tensor.detach().to("xla").requires_grad_() for tensor in tensors]
    for _ in range(2):
        loss(*(tensor.t() for tensor in tensors)).backward()
        run(*(tensor.t() for tensor in own)).backward()
    for tensor, expected in zip(own, tensors, strict=True):
        torch.testing.assert_close(tensor.grad.cpu(), expected.grad)


def test_views_of_dynamic_shape(caplog: pytest.LogCaptureFixture) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.contiguous()
        return y.add_(1)

    run = torch.compile(step, backend="openxla", dynamic=True)
    for size in range(3, 6):
        x = torch.arange(float(size * 2)).view(2, size)
        on_xla = x.to("xla")
        assert torch.equal(run(on_xla.t()).cpu(), step(x.t()))
        assert torch.equal(on_xla.cpu(), x)
    assert "is not row-major in PyTorch, and shapes are dynamic" in caplog.text


def test_values_of_a_later_write() -> None:
    """A copied part of a cache keeps its values when the cache is written to later."""
    cache = torch.zeros(2, 4, 3, device="xla")
    before = []
    for step in range(3):
        before.append(cache[:, step].contiguous())
        cache[:, step] = step + 1.0
        torch_xla.sync()
    assert all(part.cpu().count_nonzero() == 0 for part in before)
    assert cache[0, :, 0].tolist() == [1, 2, 3, 0]


def test_gradients() -> None:
    def copied(x: torch.Tensor) -> torch.Tensor:
        y = x.t().contiguous()
        return y.mul_(y.detach() + 1).reshape(-1)

    check(with_gradients(copied), torch.arange(6.0).view(2, 3))


def test_steps_through_a_view_that_is_not_row_major() -> None:
    x = torch.arange(12.0).view(3, 4)
    y = x.to("xla")
    for size, stride in (((2, 2), (1, 4)), ((4, 2), (3, 1))):  # PyTorch's strides, and XLA's
        with pytest.raises(RuntimeError, match=r"this view has the strides .1, 4."):
            y.t().as_strided(size, stride)
    assert y.t().as_strided((4, 3), (1, 4)).tolist() == x.t().tolist()
    assert y.t().as_strided((4, 3), y.t().stride()).tolist() == x.t().tolist()
    assert y.t().as_strided((1,), (1,)).tolist() == x.t().as_strided((1,), (1,)).tolist()
    windows = y.t().contiguous().as_strided((3, 2), (3, 1))
    assert windows.tolist() == x.t().contiguous().as_strided((3, 2), (3, 1)).tolist()
    assert y[1:].as_strided((2, 2), (4, 1)).tolist() == x[1:, :2].tolist()


def test_a_spectrum_of_one_channel() -> None:
    """PyTorch's stft steps through the signal by its strides."""

    def spectrum(x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        return torch.stft(x[:, 0], 8, center=False, window=window, return_complex=True)

    check(spectrum, torch.linspace(-1, 2, 64).view(32, 2).square(), torch.hann_window(8), **CLOSE)


def test_circular_padding_of_a_view_after_a_write() -> None:
    """PyTorch's kernel refers to the sizes of a value that the view replaces, and freed them."""
    rows = torch.arange(6.0).view(2, 3)
    around = torch.zeros(1, 2, 3, 2, device="xla")
    for i in range(3):
        around[..., 1] = rows.to("xla") + i
        padded = torch.nn.functional.pad(around[..., 1], (1, 2), mode="circular")
        expected = torch.nn.functional.pad(rows[None] + i, (1, 2), mode="circular")
        assert torch.equal(padded.cpu(), expected)
