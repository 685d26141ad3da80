"""Training steps with replicated parameters: when gradients are summed, and what is donated."""

import copy
import os
import re

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from testing import programs  # before the first computation
from testing.spmd import sharded
from torch import nn

from torch_xla_ext import capture

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made

BATCH, WIDTH, LAYERS = 8, 32, 8


@pytest.fixture(scope="module")
def mesh() -> xs.Mesh:
    xr.use_spmd()
    torch_xla.device()
    return xs.Mesh(np.arange(4), (4,), ("data",))


def deep() -> nn.Module:
    layers = ((nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(LAYERS))
    return nn.Sequential(*(module for pair in layers for module in pair))


@pytest.mark.parametrize("is_divided", [False, True], ids=["replicated", "divided"])
def test_gradients_are_summed_during_the_backward_pass(mesh: xs.Mesh, is_divided: bool) -> None:
    model, data = deep(), torch.randn(BATCH, WIDTH)
    loss = model(data).square().mean()
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    model, data = copy.deepcopy(model).to("xla"), sharded(data, mesh, ("data", None))
    if is_divided:
        for parameter in model.parameters():
            xs.mark_sharding(parameter, mesh, ("data", None))
    with programs.compiled("before_optimizations") as texts:
        loss = model(data).square().mean()
        found = torch.autograd.grad(loss, list(model.parameters()))
        torch_xla.sync()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-6)
    text = max(texts, key=len)
    # The backward pass waits for all gradients but the first layer's, which nothing follows, and
    # those of the two windows before it.
    waits = re.findall(r"opt-barrier\(.*gradients", text)
    assert len(waits) == LAYERS - 3, text


def test_replicated_parameters_and_states_are_written_in_place(mesh: xs.Mesh) -> None:
    model = deep().to("xla")
    data = sharded(torch.randn(BATCH, WIDTH), mesh, ("data", None))
    rate = torch.tensor(1e-3, device="xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)

    @capture
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with programs.compiled("before_optimizations") as texts:
        losses = [step().item() for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    # Each parameter, with its two averages and its count of steps, is written in place.
    assert texts[-1].partition("\n")[0].count("may-alias") == 4 * LAYERS


def test_a_replicated_tensor_that_becomes_divided(mesh: xs.Mesh) -> None:
    values, start = torch.randn(8, 4), torch.randn(8, 4)
    data, state = sharded(values, mesh, ("data", None)), start.to("xla")
    torch_xla.sync()
    doubled = data * 2
    state.add_(doubled)
    torch_xla.sync()
    torch.testing.assert_close(state.cpu(), start + 2 * values)
    state.add_(1)
    torch_xla.sync()
    torch.testing.assert_close(state.cpu(), start + 2 * values + 1)
    torch.testing.assert_close(doubled.cpu(), 2 * values)
