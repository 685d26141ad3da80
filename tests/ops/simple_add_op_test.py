"""torch_xla_ext.ops.simple_add: what it refuses, in terms of its own arguments."""

import pytest
import torch
from testing.xla import custom_call_lines

import torch_xla_ext
from torch_xla_ext import ops


def test_it_calls_the_kernel_by_its_name(device: torch.device) -> None:
    x = torch.zeros(3).to(device)
    (line,) = custom_call_lines(ops.simple_add(x, x))
    assert 'custom_call_target="XlaGpuSimpleAdd"' in line


@pytest.mark.parametrize("position", [0, 1], ids=["a", "b"])
def test_not_a_tensor(device: torch.device, position: int) -> None:
    arguments = [torch.zeros(3).to(device)] * 2
    arguments[position] = [1.0]
    with pytest.raises(TypeError, match=f"XlaGpuSimpleAdd: {'ab'[position]} must be a tensor, but"):
        ops.simple_add(*arguments)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.complex64], ids=str)
def test_dtype_without_a_kernel(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.zeros(3, dtype=dtype).to(device)
    with pytest.raises(TypeError, match=f"a must have one of the dtypes .*, but has {dtype}"):
        ops.simple_add(x, x)


def test_different_dtypes(device: torch.device) -> None:
    a, b = torch.zeros(3).to(device), torch.zeros(3, dtype=torch.int32).to(device)
    with pytest.raises(
        TypeError, match=r"b must have the dtype of a, torch.float32, but has torch"
    ):
        ops.simple_add(a, b)


def test_different_shapes(device: torch.device) -> None:
    a, b = torch.zeros(3).to(device), torch.zeros(1, 3).to(device)
    with pytest.raises(ValueError, match=r"b must have the shape of a, \[3\], but has \[1, 3\]"):
        ops.simple_add(a, b)


def test_too_many_elements(device: torch.device) -> None:
    x = torch.zeros(1).to(device).expand(2**21, 2**20)
    with pytest.raises(
        ValueError, match=r"a must have at most 2\^40 elements, but has 2199023255552"
    ):
        ops.simple_add(x, x)


def test_not_on_an_xla_device() -> None:
    with pytest.raises(
        ValueError, match=r"inputs\[0\] must be an XLA tensor, but is a torch.float32"
    ):
        ops.simple_add(torch.zeros(3), torch.zeros(3))


def test_version_is_the_wheels() -> None:
    assert torch_xla_ext.__version__.startswith("2.8.1+gpucc")
