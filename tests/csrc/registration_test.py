"""_xla_register_custom_call_target: for the CPU too, and without ending the process."""

import ctypes
import os

import pytest
import torch
from testing.xla import XLAC, capsule, host_kernel

register = XLAC._xla_register_custom_call_target


def test_a_target_is_called_by_the_name_it_is_registered_under(device: torch.device) -> None:
    register("registration_test.echo", host_kernel("TestEcho"), "Host")
    x = torch.zeros(1).to(device)
    result = XLAC._xla_gpu_custom_call(
        [x], b"abc", [[16]], [torch.int64], target="registration_test.echo"
    )[0]
    assert result.cpu().tolist()[:4] == [3, 97, 98, 99]


def test_registration_after_tracing_before_compiling(device: torch.device) -> None:
    x = torch.zeros(1).to(device)
    result = XLAC._xla_gpu_custom_call([x], b"abc", [[16]], [torch.int64], target="late")[0]
    register("late", host_kernel("TestEcho"), "Host")
    assert result.cpu().tolist()[0] == 3


def test_registered_targets_are_listed() -> None:
    register("listed", host_kernel("TestEcho"), "Host")
    assert "listed" in XLAC._xla_registered_custom_call_targets("Host")
    assert "listed" not in XLAC._xla_registered_custom_call_targets("CUDA")


def test_the_same_function_again_is_accepted() -> None:
    register("again", host_kernel("TestEcho"), "Host")
    register("again", host_kernel("TestEcho"), "Host")


def test_another_function_under_the_same_name_is_refused() -> None:
    register("taken", host_kernel("TestEcho"), "Host")
    with pytest.raises(ValueError, match='"taken" is registered for "Host" already') as error:
        register("taken", host_kernel("TestCopy"), "Host")
    assert "TestEcho in " in str(error.value)
    assert "TestCopy in " in str(error.value)


def test_static_targets_are_registered_for_both_platforms() -> None:
    for platform in ("CUDA", "Host"):
        assert "XlaGpuSimpleAdd" in XLAC._xla_registered_custom_call_targets(platform)


@pytest.mark.parametrize("platform", ["CPU", "cuda", "", "ROCM"])
def test_unknown_platform(platform: str) -> None:
    text = f'unknown platform "{platform}"; known are "CUDA", "Host"'
    with pytest.raises(ValueError, match=text):
        register("x", host_kernel("TestEcho"), platform)
    with pytest.raises(ValueError, match=text):
        XLAC._xla_registered_custom_call_targets(platform)


def test_empty_name() -> None:
    with pytest.raises(ValueError, match="the name of a custom-call target is empty"):
        register("", host_kernel("TestEcho"), "Host")


@pytest.mark.parametrize("function", [0, 12345, None, "TestEcho"])
def test_not_a_capsule(function: object) -> None:
    with pytest.raises(TypeError):
        register("x", function, "Host")


def test_wrong_order_of_arguments() -> None:
    with pytest.raises(TypeError):
        register(host_kernel("TestEcho"), "x", "Host")


def test_library_is_what_a_user_would_load() -> None:
    assert ctypes.CDLL(os.environ["HOST_KERNELS"]).TestEcho
    assert "PyCapsule" in repr(type(capsule(1)))
