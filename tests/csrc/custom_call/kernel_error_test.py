"""Errors at run time arrive as exceptions, and do not end the process."""

import pytest
import torch
import torch_xla
import torch_xla.core.xla_builder as xb
from testing.xla import PLATFORM, XLAC, register_host_kernels

TEXT = r"TestFail: operand 1 \(b\): expected 3 elements"


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    register_host_kernels("TestFail")


def failing_call(device: torch.device) -> torch.Tensor:
    x = torch.zeros(3).to(device)
    return XLAC._xla_gpu_custom_call([x], b"", [[3]], [torch.float32], "TestFail")[0]


def assert_client_is_usable(device: torch.device) -> None:
    assert torch.equal((torch.ones(3).to(device) + 1).cpu(), torch.full((3,), 2.0))


def test_failure_is_raised_when_the_result_is_read(device: torch.device) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match=TEXT):
            failing_call(device).cpu()
        assert_client_is_usable(device)


def test_failure_is_raised_by_a_synchronous_step(device: torch.device) -> None:
    result = failing_call(device)
    with pytest.raises(RuntimeError, match=TEXT):
        torch_xla.sync(wait=True)
        result.cpu()
    assert_client_is_usable(device)


def test_values_of_a_failed_program(device: torch.device) -> None:
    """Each use raises an error, and none hangs; torch.compile's use holds the device's lock."""
    result = failing_call(device)
    with pytest.raises(RuntimeError, match=TEXT):
        torch_xla.sync(wait=True)
        if PLATFORM == "CUDA":  # where only reading the result raises
            result.cpu()
    text = "no value(:|, because) the program that should have computed it failed"
    if PLATFORM == "CUDA":  # where a use may raise the kernel's error again
        text += f"|{TEXT}"
    double = torch.compile(lambda x: x * 2, backend="openxla")
    double(torch.ones(3).to(device))
    for use in (torch.Tensor.cpu, torch.clone, torch.exp, double):
        with pytest.raises(RuntimeError, match=text):
            use(result).cpu()
    assert_client_is_usable(device)


def test_unknown_target(device: torch.device) -> None:
    x = torch.zeros(3).to(device)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="NoSuchTarget"):
            XLAC._xla_gpu_custom_call([x], b"", [[3]], [torch.float32], "NoSuchTarget")[0].cpu()
    assert_client_is_usable(device)


def test_check_ok_raises(device: torch.device) -> None:
    """XLA_CHECK_OK in torch_xla's own code, with which upstream torch_xla crashes the process."""
    builder = xb.create_builder("test")
    a = xb.mkparam(builder, 0, xb.Shape.create(xb.Type.F32, [3]))
    b = xb.mkparam(builder, 1, xb.Shape.create(xb.Type.F32, [4]))
    with pytest.raises(RuntimeError, match="Binary op with incompatible shapes"):
        (a + b).shape()
    assert_client_is_usable(device)
