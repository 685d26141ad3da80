"""Scripts that use torch_xla.experimental.triton run without changes."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_xla
import torch_xla.experimental.triton as xla_triton
from testing.xla import hlo
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import triton_kernels as kernels


def norm(x: Tensor, weight: Tensor, epsilon: object = 0.5, **options: object) -> Tensor:
    rows, columns = x.shape
    payload = xla_triton.triton_call(
        *(x, weight, torch.empty_like(x), columns, epsilon),
        kernel=kernels.rms_norm,
        grid=lambda meta: (rows, meta["BLOCK"] // 128),
        BLOCK=128,
        **options,
    )
    (result,) = torch_xla._XLAC._xla_gpu_custom_call([x, weight], payload, [x.shape], [x.dtype])
    return result


@pytest.mark.parametrize("epsilon", [0.5, np.float32(0.5)])
def test_on_the_cpu(device: torch.device, epsilon: object) -> None:
    x, weight = torch.randn(4, 100), torch.randn(100)
    result = norm(x.to(device), weight.to(device), epsilon)
    expected = torch.nn.functional.rms_norm(x, (100,), weight, 0.5)
    torch.testing.assert_close(result.cpu(), expected)


def test_the_tensors_are_those_of_the_call(device: torch.device) -> None:
    x = torch.randn(400)
    payload = xla_triton.triton_call(
        x.to(device), x.to(device), 400, kernel=kernels.tuned.fn, grid=(2,), BLOCK=256
    )
    call = torch_xla._XLAC._xla_gpu_custom_call
    for factor in (1, 2):  # the tensors are those of _xla_gpu_custom_call
        (y,) = call([factor * x.to(device)], payload, [[400]], [torch.float32])
        assert torch.equal(y.cpu(), factor * x + 1)


@pytest.mark.usefixtures("on_a_gpu")
def test_launch_attributes_on_a_gpu(device: torch.device) -> None:
    """The launch is that of upstream's module: 4 warps, and 0.5 as an fp64."""
    x, weight = torch.randn(4, 100).to(device), torch.randn(100).to(device)
    text = hlo(norm(x, weight, num_warps=8)).replace('\\"', '"')
    assert 'custom_call_target="XlaGpuCompiledKernel"' in text
    assert "block = array<i32: 256, 1, 1>" in text
    assert 'parameters = "t0 t1 r0 x64000000 x0000003f x0000000000000000' in text
    assert "grid = array<i32: 4, 1, 1>" in text


def test_tensors_that_do_not_fit_are_refused(device: torch.device) -> None:
    x = torch.randn(8).to(device)
    payload = xla_triton.triton_call(x, x, 8, kernel=kernels.tuned.fn, grid=1, BLOCK=8)
    call = torch_xla._XLAC._xla_gpu_custom_call
    with pytest.raises(ValueError, match="was given the tensors x_ptr, y_ptr, but there are 2 inp"):
        call([x, x], payload, [[8]], [torch.float32])
    with pytest.raises(TypeError, match=r"was given y_ptr as torch\.float32, but it is .*float64"):
        call([x], payload, [[8]], [torch.float64])
    with pytest.raises(ValueError, match="takes neither a target nor aliases"):
        call([x], payload, [[8]], [torch.float32], target="XlaGpuSimpleAdd")
    with pytest.raises(ValueError, match="takes neither a target nor aliases"):
        call([x], payload, [[8]], [torch.float32], aliases={0: 0})
    with pytest.raises(TypeError, match="tuned: 5 arguments"):
        xla_triton.triton_call(x, x, 8, 8, 8, kernel=kernels.tuned.fn, grid=1)


def test_other_payloads_are_as_before(device: torch.device) -> None:
    """Bytes, and a subclass of bytes without a function `call`, go to the default target."""

    class Bytes(bytes):
        pass

    x = torch.ones(3).to(device)
    for payload in (b"abc", Bytes(b"abc")):
        (y,) = torch_xla._XLAC._xla_gpu_custom_call([x], payload, [[3]], [torch.float32])
        assert 'custom_call_target="triton_kernel_call"' in hlo(y)
