"""Sizes that a mesh does not divide: right numbers, and a warning that states the cost."""

import os
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing.ways import run_by
from torch import nn
from torch.nn import functional
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made


@pytest.fixture(scope="module", autouse=True)
def mesh() -> xs.Mesh:
    xr.use_spmd()
    return xs.Mesh(np.arange(4), (4,), ("x",))


def marked(tensor: torch.Tensor, mesh: xs.Mesh) -> torch.Tensor:
    on_device = tensor.to("xla")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*cannot be divided equally")
        xs.mark_sharding(on_device, mesh, ("x", *[None] * (tensor.dim() - 1)))
    return on_device


def test_text_of_the_warning(mesh: xs.Mesh) -> None:
    x = torch.randn(5, 4)
    on_device = x.to("xla")
    text = (
        r"mark_sharding: dimension 0 of a tensor of \[5, 4\] cannot be divided equally among 4 "
        "devices, so every device has all of it; to divide it, pad it to 8"
    )
    with pytest.warns(UserWarning, match=text) as found:
        xs.mark_sharding(on_device, mesh, ("x", None))
    assert found[0].filename == __file__
    assert torch.equal(on_device.cpu(), x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xs.mark_sharding(torch.randn(5, 4).to("xla"), mesh, ("x", None))  # warned already
        xs.mark_sharding(torch.randn(8, 3).to("xla"), mesh, ("x", None))


@pytest.mark.parametrize("axis", ["y", 1])
def test_an_unknown_axis(mesh: xs.Mesh, axis: str | int) -> None:
    text = rf"dimension 0 of a tensor of \[8, 4\] .* axis {axis!r}, .* its axes are \[0, 'x'\]"
    with pytest.raises(ValueError, match=text):
        xs.mark_sharding(torch.randn(8, 4).to("xla"), mesh, (axis, None))


def test_lists_of_axes() -> None:
    mesh = xs.Mesh(np.arange(4), (2, 2), ("x", "y"))
    x = torch.randn(8, 4).to("xla")
    xs.mark_sharding(x, mesh, [["x", "y"], ()])
    assert "[4,1]" in torch_xla._XLAC._get_xla_sharding_spec(x)


def test_a_hybrid_mesh_of_devices_without_coordinates() -> None:
    mesh = xs.HybridMesh(ici_mesh_shape=(2, 2), axis_names=("x", "y"))
    assert mesh.get_logical_mesh().tolist() == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match=r"a mesh of \(2, 4\) has 8 devices, but there are 4"):
        xs.HybridMesh(ici_mesh_shape=(2, 4), axis_names=("x", "y"))


def grad(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    x = x.requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


X = torch.arange(30.0).view(6, 5)
INDEX = (torch.arange(6) % 5)[:, None]
FUNCTIONS = {
    "scatter": lambda put: put(X).scatter(1, put(INDEX), 1.0),
    "one_hot": lambda put: functional.one_hot(put(INDEX[:, 0]), 5),
    "gradient of gather": lambda put: grad(lambda t: t.gather(1, put(INDEX)), put(X)),
    "gradient of topk": lambda put: grad(lambda t: t.topk(2, 1)[0], put(X)),
    "gradient of max": lambda put: grad(lambda t: t.max(1)[0], put(X)),
    "gradient of sort": lambda put: grad(lambda t: t.sort(1)[0], put(X)),
    "gradient of embedding": lambda put: grad(
        lambda t: functional.embedding(put(INDEX[:, 0]), t), put(X[:, :3])
    ),
    "index_put": lambda put: put(X).index_put(
        (put(torch.arange(6)), put(INDEX[:, 0])), put(X)[:, 0]
    ),
    "sort": lambda put: put(X).sort(0, descending=True)[0],
    "slices": lambda put: put(X)[1:4] + put(X)[::2],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators_of_uneven_sizes(mesh: xs.Mesh, name: str) -> None:
    function = FUNCTIONS[name]
    result = function(lambda tensor: marked(tensor, mesh)).cpu()
    assert torch.equal(result, function(torch.clone))


@pytest.mark.parametrize("way", ["lazy", "captured"])
def test_in_place(mesh: xs.Mesh, way: str) -> None:
    tensor, expected = marked(X, mesh), X.clone()

    def step(t: torch.Tensor) -> torch.Tensor:
        t.mul_(0.5)
        t.sub_(t.sum(0, keepdim=True))
        return t.sum()

    function = run_by(way, step)
    for _ in range(3):
        total = function(tensor)
        torch_xla.sync()
        torch.testing.assert_close(total.cpu(), step(expected))
    torch.testing.assert_close(tensor.cpu(), expected)


class Model(nn.Module):
    """A model with a vocabulary that no mesh divides, like GPT-2's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(57, 16)
        self.linear = nn.Linear(16, 33)
        self.head = nn.Linear(33, 57)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.linear(self.embedding(tokens))))


def test_a_model_in_fsdp(mesh: xs.Mesh) -> None:
    """Each parameter is sharded along a divisible dimension; the last batch is smaller."""
    torch.manual_seed(0)
    expected = Model()
    fsdp_mesh = xs.Mesh(np.arange(4), (4, 1), ("fsdp", "model"))
    model = Model()
    model.load_state_dict(expected.state_dict())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*cannot be divided equally")
        model = SpmdFullyShardedDataParallel(model.to("xla"), mesh=fsdp_mesh)
        spec = torch_xla._XLAC._get_xla_sharding_spec(model.module.embedding.weight)
        assert spec.startswith("{devices=[1,4]")
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, expected)]
        for size in (8, 8, 6):
            tokens = torch.randint(57, (size, 5))
            losses = []
            for each, optimizer in zip((model, expected), optimizers, strict=True):
                on = tokens.to("xla") if each is model else tokens
                if each is model:
                    xs.mark_sharding(on, fsdp_mesh, ("fsdp", None))
                loss = functional.cross_entropy(each(on).flatten(0, 1), on.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                torch_xla.sync()
                losses.append(loss.detach().cpu())
            torch.testing.assert_close(*losses)
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach().cpu(), other.detach())


def test_a_batch_of_a_loader(mesh: xs.Mesh) -> None:
    spec = xs.ShardingSpec(mesh, ("x", None))
    tensor = torch.randn(7, 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*cannot be divided equally")
        (sent,) = torch_xla._XLAC._xla_tensors_from_aten(
            [tensor], [str(torch_xla.device())], [spec.xla_spec(tensor)]
        )
    assert torch.equal(sent.cpu(), tensor)


def _gradient(loss: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, of)[0]


SCATTERS = {
    "index_add": lambda x, i, y: x.index_add(0, i[1:], y[1:]),
    "scatter_add": lambda x, i, y: x.scatter_add(0, i[1:, None].expand(7, 4), y[1:]),
    "index_put": lambda x, i, y: x.index_put((i[1:],), y[1:], accumulate=True),
    "of whole indices": lambda x, i, y: x.index_add(0, torch.tensor([0, 0, 1]).to(x.device), y[:3]),
    "of one row": lambda x, i, y: x.index_add(0, i[7:], y[7:]),
    "of one column": lambda x, i, y: x.scatter_add(1, i[:, None] % 4, y[:, 3:]),
    "of one index": lambda x, i, y: x.scatter_add(0, i[2:3, None].expand(1, 4), y[2:3]),
    "of one of each": lambda x, i, y: x.index_put((i[3:4], i[5:6] % 4), y[1:2, 0]),
    "scatter_reduce": lambda x, i, y: x.scatter_reduce(0, i[:3, None].expand(3, 4), y[:3], "amax"),
    "one_hot": lambda x, i, y: functional.one_hot(i[1:], 8),
    "index_select": lambda x, i, y: _gradient(x.index_select(0, i[:7]).sin().sum(), x),
    "embedding": lambda x, i, y: _gradient(functional.embedding(i[1:], x).sin().sum(), x),
}


@pytest.mark.parametrize("sizes", [(4,), (2, 2)], ids=len)
@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_by_a_part_of_sharded_indices(name: str, sizes: tuple[int, ...]) -> None:
    """XLA's partitioner adds its own padding, or crashes the process for 64-bit indices."""
    mesh = xs.Mesh(np.arange(4), sizes, ("x", "y")[: len(sizes)])
    operands = torch.randn(8, 4), torch.randint(0, 8, (8,)), torch.randn(8, 4)
    on_devices = [marked(operand, mesh) for operand in operands]
    for x in (operands[0], on_devices[0]):
        x.requires_grad_()
    expected = SCATTERS[name](*operands)
    torch.testing.assert_close(SCATTERS[name](*on_devices).detach().cpu(), expected.detach())
