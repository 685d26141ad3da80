"""A call's shapes are fixed when it is traced, so operands with dynamic shapes are refused."""

import os

# Read once, at the first use of such an operation.
os.environ["XLA_EXPERIMENTAL"] = "nonzero"

import pytest
import torch
from testing.xla import XLAC, hlo, register_host_kernels

from torch_xla_ext import custom_call


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    register_host_kernels("TestEcho")


def test_size_that_is_known_when_it_runs(device: torch.device) -> None:
    found = torch.nonzero(torch.tensor([1.0, 0.0, 2.0]).to(device))
    (y,) = XLAC._xla_gpu_custom_call([found], b"", [[16]], [torch.int64], "TestEcho")
    with pytest.raises(
        RuntimeError,
        match=r'"TestEcho": operand 0 has the dynamic shape s32\[<=3,1\]: a kernel needs',
    ):
        y.cpu()
    with pytest.raises(ValueError, match=r"array 0, .*, has the dynamic shape .*<=3, 1"):
        custom_call("XlaGpuSimpleAdd", [found, found], [found])


def test_size_that_an_exported_program_leaves_open(device: torch.device) -> None:
    x = torch.ones(4, 3).to(device)
    XLAC._xla_mark_dynamic(x, 0)
    (y,) = custom_call("XlaGpuSimpleAdd", [x, x], [x])
    text = r'"XlaGpuSimpleAdd": operand 0 has the dynamic shape f32\[\?,3\]'
    with pytest.raises(RuntimeError, match=text):
        hlo(y)
