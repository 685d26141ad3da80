"""Operators refuse wrong calls on every device with the same errors about their arguments."""

import re

import pytest
import torch

from torch_xla_ext import ops
from xla_kernels.signature.dtypes import xla_name

OPERATOR = "xla_gpu::simple_add: "
on_every_device = pytest.mark.parametrize("device", ["cpu", "meta", "xla"])


def refuses(error: type[Exception], text: str) -> object:
    return pytest.raises(error, match=re.escape(OPERATOR + text))


@on_every_device
@pytest.mark.parametrize("position", [0, 1], ids=["a", "b"])
def test_not_a_tensor(device: str, position: int) -> None:
    arguments = [torch.zeros(3, device=device)] * 2
    arguments[position] = [1.0]
    text = f"Expected a value of type 'Tensor' for argument '{'ab'[position]}' but instead found"
    with pytest.raises(RuntimeError, match=re.escape(f"xla_gpu::simple_add() {text} type 'list'")):
        ops.simple_add(*arguments)


@on_every_device
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.complex64], ids=str)
def test_dtype_without_a_kernel(device: str, dtype: torch.dtype) -> None:
    x = torch.zeros(3, dtype=dtype, device=device)
    text = (
        f"operand 0 (a): expected dtype F16, BF16, F32, F64, S32 or S64 but got {xla_name(dtype)}"
    )
    with refuses(TypeError, text):
        ops.simple_add(x, x)


@on_every_device
def test_different_dtypes(device: str) -> None:
    a, b = torch.zeros(3, device=device), torch.zeros(3, dtype=torch.int32, device=device)
    with refuses(
        TypeError, "operand 1 (b): expected dtype F32 but got S32; T is that of operand 0 (a)"
    ):
        ops.simple_add(a, b)


@on_every_device
@pytest.mark.parametrize("shape", [(1, 3), (4,), ()], ids=str)
def test_different_shapes(device: str, shape: tuple[int, ...]) -> None:
    a, b = torch.zeros(3, device=device), torch.zeros(shape, device=device)
    with refuses(ValueError, f"operand 1 (b): expected dimensions [3] but got {list(shape)}"):
        ops.simple_add(a, b)


@pytest.mark.parametrize("b", ["cpu", "meta", "xla:0"])
@pytest.mark.parametrize("a", ["cpu", "meta", "xla:0"])
def test_different_devices(a: str, b: str) -> None:
    if a != b:
        with refuses(ValueError, f"b must be on the device of a, {a}, but is on {b}"):
            ops.simple_add(torch.zeros(3, device=a), torch.zeros(3, device=b))


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_wrong_call_while_compiling(device: str) -> None:
    a, b = torch.zeros(3, device=device), torch.zeros(4, device=device)
    compiled = torch.compile(ops.simple_add, backend="aot_eager")
    with pytest.raises(
        RuntimeError, match=re.escape("operand 1 (b): expected dimensions [3] but got")
    ):
        compiled(a, b)
