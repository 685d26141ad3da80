"""Modules that move to an XLA device, and back, keep their parameter objects, as with CUDA."""

import io
import itertools
from pathlib import Path

import pytest
import torch
import torch_xla
from torch import nn


class Tied(nn.Module):
    """An embedding and a head with one weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(8, 4)
        self.hidden = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(self.embedding(tokens)).tanh())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> list[float]:
    """Trains for three steps; returns the losses."""
    tokens = torch.arange(8, device=device)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), tokens.flip(0))
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return losses


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


@pytest.mark.parametrize("is_optimizer_first", [False, True])
def test_tied_weights(is_optimizer_first: bool) -> None:
    reference = Tied()
    expected = train(reference, optimizer_of(reference), "cpu")

    model = Tied()
    weight = model.head.weight
    weight.tag = "kept"
    optimizer = optimizer_of(model)
    assert model.to("xla") is model
    if not is_optimizer_first:
        optimizer = optimizer_of(model)
    assert model.embedding.weight is model.head.weight is weight
    assert (weight.device.type, weight.tag) == ("xla", "kept")
    assert train(model, optimizer, "xla") == pytest.approx(expected, rel=1e-5)

    model.cpu()
    assert model.embedding.weight is model.head.weight is weight
    torch.testing.assert_close(weight, reference.head.weight)


def test_tied_weights_of_a_graph() -> None:
    """backward() will write to the old tensor, so the parameter cannot be replaced."""
    model = Tied()
    loss = model(torch.arange(8)).sum()
    model.to("xla")
    assert model.embedding.weight is model.head.weight
    assert model.head.weight.device.type == "xla"
    loss.backward()


def test_tied_weights_with_a_weak_reference() -> None:
    model = Tied()
    _reference = torch._C._WeakTensorRef(model.head.weight)
    model.to("xla")
    assert model.embedding.weight is model.head.weight
    assert model.head.weight.device.type == "xla"


def test_gradients_and_dtypes() -> None:
    model = Tied()
    model(torch.arange(8)).sum().backward()
    gradient = model.head.weight.grad.clone()
    model.hidden.bias.requires_grad_(False)
    model.to("xla", torch.bfloat16)
    assert model.embedding.weight is model.head.weight
    assert model.head.weight.dtype == torch.bfloat16
    torch.testing.assert_close(model.head.weight.grad.cpu(), gradient.bfloat16())
    assert not model.hidden.bias.requires_grad
    assert model.hidden.weight.requires_grad


def test_new_parameters_if_the_user_wants_them() -> None:
    model = Tied()
    weight = model.head.weight
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.to("xla")
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    assert model.head.weight is not weight
    assert weight.device.type == "cpu"


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.LazyLinear(4), (2, 3)),
        (nn.LazyConv2d(4, 3), (1, 2, 5, 5)),
        (nn.LazyBatchNorm1d(), (4, 3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_lazy_modules(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)
    result = module.to("xla")(x.to("xla"))
    torch.testing.assert_close(result.cpu(), module.cpu().train()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keeps_reference", [False, True])
def test_hooks_of_parameters_move_with_them(keeps_reference: bool) -> None:
    layer = nn.Linear(2, 1)
    graph = layer.weight.sum() if keeps_reference else None  # refers to the parameter
    calls = []
    layer.weight.register_hook(lambda gradient: calls.append("gradient") or gradient * 3)
    layer.weight.register_post_accumulate_grad_hook(lambda weight: calls.append("accumulated"))
    layer.to("xla")
    layer(torch.ones(1, 2, device="xla")).sum().backward()
    assert calls == ["gradient", "accumulated"]
    assert layer.weight.grad.tolist() == [[3.0, 3.0]]
    del graph


def test_a_loaded_script_module(device: torch.device) -> None:
    """Its parameters are plain tensors: "assert isinstance(param, Parameter)"."""
    file, x = io.BytesIO(), torch.randn(2, 3)
    layers = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    torch.jit.save(torch.jit.trace(layers, (x,)), file)
    file.seek(0)
    loaded = torch.jit.load(file).to(device)
    torch.testing.assert_close(loaded(x.to(device)).cpu(), layers(x))
    torch.testing.assert_close(loaded.to("cpu")(x), layers(x))


def test_a_saved_script_module(tmp_path: Path) -> None:
    """PyTorch's error: "Attempted to set the storage of a tensor"."""
    x = torch.randn(2, 3)
    layers = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    expected = layers(x)
    layers.to("xla")
    traced, scripted = torch.jit.trace(layers, (x.to("xla"),)), torch.jit.script(layers)
    buffer, path = io.BytesIO(), tmp_path / "scripted.pt"
    torch.jit.save(traced, buffer)
    scripted.save(path)
    buffer.seek(0)
    assert {tensor.device.type for tensor in layers.state_dict().values()} == {"xla"}
    for file, device in itertools.product((buffer, path), ("cpu", "xla")):
        loaded = torch.jit.load(file, map_location=device)
        torch.testing.assert_close(loaded(x.to(device)).cpu(), expected)
        buffer.seek(0)
