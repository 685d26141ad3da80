"""Programs on four devices under SPMD: right numbers, or an error of one sentence."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr

os.environ.setdefault("CPU_NUM_DEVICES", "4")  # before the first device is made


@pytest.fixture(scope="module")
def mesh() -> xs.Mesh:
    xr.use_spmd()
    assert xr.global_runtime_device_count() == 4
    return xs.Mesh(np.arange(4), (4,), ("x",))


@pytest.mark.parametrize("rows", [5, 6])
def test_compiled_chunks_of_a_batch(mesh: xs.Mesh, rows: int) -> None:
    """XLA chooses the shardings of chunks when it computes them, and not always the same.

    A program that met another sharding did not start, and then each wait was for ever.
    """

    def loss_of(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ weight.t()).sum()

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        total = 0
        for chunk in x.chunk(2):
            loss = loss_of(chunk, weight)
            loss.backward()
            total = total + loss.detach()
        return total

    compiled = torch.compile(step, backend="openxla")
    x, weight = torch.randn(rows, 6), torch.randn(16, 6, requires_grad=True)
    x_on_devices = x.to("xla")
    xs.mark_sharding(x_on_devices, mesh, ("x", None))
    weight_on_devices = weight.detach().to("xla").requires_grad_()
    for _ in range(3):
        total = compiled(x_on_devices, weight_on_devices)
        torch_xla.sync()
        torch.testing.assert_close(total.cpu(), step(x, weight))
    torch.testing.assert_close(weight_on_devices.grad.cpu(), weight.grad)
    torch_xla._XLAC._xla_wait_device_ops([])
