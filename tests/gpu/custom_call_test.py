"""custom_call on a GPU: both APIs, aliases and the kernel's own errors."""

import pytest
import torch
import torch_xla
from testing.xla import hlo

from torch_xla_ext import Target, custom_call, debug, registered_targets

APIS = ["untyped", "ffi"]


def test_both_apis_are_registered(device: torch.device) -> None:
    assert {Target("XlaGpuSimpleAdd", "CUDA", api) for api in APIS} <= set(registered_targets())


@pytest.mark.parametrize("api", APIS)
def test_transposed_operand(device: torch.device, api: str) -> None:
    a, b = torch.randn(5, 7), torch.randn(7, 5)
    (total,) = custom_call("XlaGpuSimpleAdd", [a.to(device), b.to(device).t()], [a], api=api)
    assert torch.equal(total.cpu(), a + b.t())


@pytest.mark.parametrize("api", APIS)
def test_alias(device: torch.device, api: str) -> None:
    a, b = torch.randn(1000), torch.randn(1000)
    x, y = a.to(device), b.to(device)
    (total,) = custom_call("XlaGpuSimpleAdd", [x, y], [x], aliases={0: 0}, api=api)
    assert "output_to_operand_aliasing={{0}: (0, {})}" in hlo(total)
    assert torch.equal(total.cpu(), a + b)
    assert torch.equal(x.cpu(), a)  # still in use: XLA copied it


def test_a_typed_call_that_the_kernel_refuses(device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    text = r"XlaGpuSimpleAdd: operand 1 \(b\): expected dtype F32 but got S32"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=text):
            torch_xla._XLAC._xla_gpu_custom_call(
                [x, x.int()], "{}", [[3]], [torch.float32], "XlaGpuSimpleAdd", api_version=4
            )[0].cpu()
    assert (x + 1).cpu().tolist() == [1, 1, 1]


def test_calls_many_times(device: torch.device) -> None:
    """XLA may capture FFI calls in a CUDA graph once a program has run several times."""
    x = torch.zeros(1000, device=device)
    one = torch.ones(1000, device=device)
    for _ in range(20):
        for _ in range(8):
            (x,) = custom_call("XlaGpuSimpleAdd", [x, one], [x], api="ffi")
        assert len(debug.custom_calls(x)) == 8
        x = x.cpu().to(device)
    assert x.cpu().tolist() == [160] * 1000
