"""Weights on the batch's mesh axis are gathered for their products; activations are not."""

import copy
import os

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing import programs  # before the first computation
from testing.spmd import sharded
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made

BATCH, LENGTH, WIDTH, HEADS, TOKENS = 8, 6, 32, 4, 64


class Attention(nn.Module):
    """Attention with a product after it, whose result upstream shards like the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2)).square().mean()


class Images(nn.Module):
    """A convolution of images, then a product."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 12, 3, padding=1)
        self.linear = nn.Linear(12 * 16, 20)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.tanh(self.convolution(images)).flatten(1)).square().mean()


class Deep(nn.Module):
    """Eight layers with two weights of one size each."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False)
            )
            for _ in range(8)
        )
        self._is_checkpointed = is_checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            if self._is_checkpointed:
                x = x + checkpoint(layer, x.sin(), use_reentrant=False)
            else:
                x = x + layer(x.sin())
        return x.square().mean()


@pytest.fixture(scope="module", autouse=True)
def use_spmd() -> None:
    xr.use_spmd()
    torch_xla.device()


def gradients(model: nn.Module, data: torch.Tensor) -> list[torch.Tensor]:
    loss = model(data)
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def collectives_of(
    model: nn.Module, data: torch.Tensor, mesh: xs.Mesh, batch: tuple, spec: tuple
) -> list[str]:
    """Check a step of a model with sharded parameters, and return its collectives."""
    wanted = gradients(model, data)
    model = copy.deepcopy(model).to("xla")
    for parameter in model.parameters():
        xs.mark_sharding(parameter, mesh, (*spec, *[None] * 9)[: parameter.dim()])
    data = sharded(data, mesh, (*batch, *[None] * (data.dim() - len(batch))))
    with programs.compiled() as texts:
        found = gradients(model, data)
        torch_xla.sync()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-6)
    return [each for text in texts for each in programs.collectives(text)]


def of_rows(collectives: list[str], rows: int) -> list[str]:
    """Return the collectives that send tensors whose first dimension has examples or tokens."""
    return [
        each
        for each in collectives
        if each.startswith(("all-gather", "all-to-all"))
        and ({f"[{rows},", f"[{BATCH},"} & {each[each.index("[") :].split(",")[0] + ","})
    ]


def test_fsdp_gathers_weights_alone() -> None:
    mesh = xs.Mesh(np.arange(4), (4,), ("fsdp",))
    tokens = torch.randint(TOKENS, (BATCH, LENGTH))
    found = collectives_of(Attention(), tokens, mesh, ("fsdp",), ("fsdp",))
    assert not [each for each in found if each.startswith("all-to-all")]
    assert not of_rows(found, BATCH * LENGTH)
    assert [each for each in found if each.startswith(f"all-gather f32[{WIDTH},{WIDTH}]")]


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_backward_passes_gather_again_what_was_gathered_long_before(is_checkpointed: bool) -> None:
    mesh = xs.Mesh(np.arange(4), (4,), ("fsdp",))
    tokens = torch.randint(TOKENS, (BATCH, LENGTH))
    model = Deep(is_checkpointed)
    found = collectives_of(model, tokens, mesh, ("fsdp",), ("fsdp",))
    gathers = [each for each in found if each.startswith(f"all-gather f32[{WIDTH},{WIDTH}]")]
    # The last three of sixteen gathered weights may be kept between forward and backward.
    # Recomputed layers use the weight that was gathered for the backward pass.
    assert 16 + 13 <= len(gathers) <= 16 + 16


def test_convolutions_gather_weights_alone() -> None:
    mesh = xs.Mesh(np.arange(4), (4,), ("fsdp",))
    found = collectives_of(Images(), torch.randn(BATCH, 3, 4, 4), mesh, ("fsdp",), ("fsdp",))
    assert not [each for each in found if each.startswith("all-to-all")]
    assert not of_rows(found, BATCH)


def test_tensor_parallel_weights_stay_divided() -> None:
    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    tokens = torch.randint(TOKENS, (BATCH, LENGTH))
    found = collectives_of(Attention(), tokens, mesh, ("data",), ("model",))
    whole = {f"[{WIDTH},{WIDTH}]", f"[{3 * WIDTH},{WIDTH}]", f"[{WIDTH},{3 * WIDTH}]"}
    assert not [each for each in found if "all-gather" in each and any(s in each for s in whole)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
@pytest.mark.parametrize("spec", [("data", "model"), ("model", "data")])
def test_both_axes_divide_weights(spec: tuple, order: tuple) -> None:
    mesh = xs.Mesh(np.array(order), (2, 2), ("data", "model"))
    tokens = torch.randint(TOKENS, (BATCH, LENGTH))
    found = collectives_of(Attention(), tokens, mesh, ("data",), spec)
    whole = {f"[{3 * WIDTH},{WIDTH}]", f"[{WIDTH},{3 * WIDTH}]"}
    assert not [each for each in found if "all-gather" in each and any(s in each for s in whole)]


@pytest.mark.parametrize("batch", [(None,), (("data", "model"),)])
def test_batches_that_are_whole_or_on_all_devices(batch: tuple) -> None:
    mesh = xs.Mesh(np.arange(4), (2, 2), ("data", "model"))
    tokens = torch.randint(TOKENS, (BATCH, LENGTH))
    collectives_of(Attention(), tokens, mesh, batch, ("model", "data"))


_SPECS = [(a, b) for a in (None, "x", "y") for b in (None, "x", "y") if a is None or a != b]


@pytest.mark.parametrize("order", [(3, 1, 0, 2), (1, 0, 3, 2), (3, 2, 1, 0), (2, 3, 0, 1)])
def test_products_on_meshes_of_any_order(order: tuple) -> None:
    mesh = xs.Mesh(np.array(order), (2, 2), ("x", "y"))
    a, b = torch.randn(8, 12), torch.randn(8, 4)
    wanted = a.t() @ b
    for one in (("x", None), ("y", None), (None, "x")):
        for result_spec in [*_SPECS, (("x", "y"), None)]:
            result = sharded(a, mesh, one).t() @ sharded(b, mesh, (one[0], None))
            xs.mark_sharding(result, mesh, result_spec)
            message = f"{one} -> {result_spec}"
            torch.testing.assert_close(result.cpu(), wanted, msg=lambda m, at=message: f"{at}: {m}")


def test_scatters_on_a_mesh_of_another_order() -> None:
    """XLA's partitioner took the wrong slices of the sums."""
    mesh = xs.Mesh(np.array((3, 1, 0, 2)), (2, 2), ("x", "y"))
    updates, index = torch.randn(8, 4), torch.randint(8, (8,))
    for spec in (("x", "y"), ("y", "x"), ("x", None)):
        for result_spec in _SPECS:
            zeros = torch.zeros(8, 4, device="xla")
            on_devices = sharded(updates, mesh, spec)
            result = zeros.index_add(0, sharded(index, mesh, spec[:1]), on_devices)
            xs.mark_sharding(result, mesh, result_spec)
            torch.testing.assert_close(result.cpu(), zeros.cpu().index_add(0, index, updates))


def test_sums_along_an_axis_that_a_reshape_splits() -> None:
    mesh = xs.Mesh(np.array((3, 1, 0, 2)), (4,), ("x",))
    x, y = torch.randn(4, 8, 6), torch.randn(96)
    operands = sharded(x, mesh, (None, "x", None)), sharded(y, mesh, ("x",))
    for function in (
        lambda x, y: torch.einsum("abc,dbc->ad", x, y.view(2, 8, 6)),
        lambda x, y: functional.conv1d(x, y.view(12, 8, 1)),
    ):
        torch.testing.assert_close(function(*operands).cpu(), function(x, y))
