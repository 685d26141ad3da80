"""Reading and exporting values that two devices share."""

import os

import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
from testing.spmd import sharded
from torch_xla.core import xla_model
from torch_xla.stablehlo import exported_program_to_stablehlo

from torch_xla_ext import debug, ops

os.environ.setdefault("CPU_NUM_DEVICES", "2")  # before the first device is made


def num_compiled() -> int:
    return (met.metric_data("CompileTime") or (0,))[0]


def test_a_value_is_gathered_by_one_program(mesh: xs.Mesh) -> None:
    values = [torch.randn(8, 12) for _ in range(3)]
    tensors = [sharded(value, mesh, ("x", None)) for value in values]
    columns = sharded(values[0], mesh, (None, "x"))
    torch_xla.sync()
    before = num_compiled()
    for _ in range(3):
        for value, tensor in zip(values, tensors, strict=True):
            assert torch.equal(tensor.cpu(), value)
    assert num_compiled() == before + 1
    assert torch.equal(columns.cpu(), values[0])
    assert torch.equal(sharded(values[0].half(), mesh, ("x", None)).cpu(), values[0].half())
    assert num_compiled() == before + 3
    # A tensor is read again after it gets another value.
    tensors[0].mul_(2)
    torch_xla.sync()
    assert torch.equal(tensors[0].cpu(), values[0] * 2)


class Add(torch.nn.Module):
    """A custom call between other operations."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ops.simple_add(a * 2, b)


def test_stablehlo_names_the_kernel(mesh: xs.Mesh) -> None:
    a = torch.randn(8, 12)
    program = exported_program_to_stablehlo(torch.export.export(Add(), (a, a)))
    assert "@XlaGpuSimpleAdd(" in program.get_stablehlo_text()
    with pytest.raises(RuntimeError, match="runs on one device"):
        program(a, a)
    result = ops.simple_add(sharded(a, mesh, ("x", None)), torch.ones(8, 12, device="xla"))
    assert "@XlaGpuSimpleAdd(" in xla_model.get_stablehlo([result])
    # XLA still divides the program that runs.
    assert "torch_xla_ext.partitioned" in debug.hlo(result)
    assert torch.equal(result.cpu(), a + 1)
