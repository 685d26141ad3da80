"""Registration, errors, caches and memory on a GPU."""

import gc
import struct

import pytest
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from testing.xla import XLAC, compilations, host_kernel, register_host_kernels

from torch_xla_ext.ops import simple_add


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    register_host_kernels("TestCopy", "TestFail", "TestBadLaunch", "TestCount")


def call(target: str, inputs: list[torch.Tensor], payload: bytes = b"x") -> torch.Tensor:
    shape, dtype = inputs[0].shape, inputs[0].dtype
    return XLAC._xla_gpu_custom_call(inputs, payload, [shape], [dtype], target=target)[0]


def copy(tensor: torch.Tensor) -> torch.Tensor:
    return call("TestCopy", [tensor], struct.pack("<q", tensor.numel()))


def assert_client_is_usable(device: torch.device) -> None:
    a = torch.randn(64, 64)
    torch.testing.assert_close((a.to(device) * 2 + 1).cpu(), a * 2 + 1)


def test_static_and_dynamic_targets_in_one_graph(device: torch.device) -> None:
    a, b = torch.randn(33, 7), torch.randn(33, 7)
    x, y = a.to(device), b.to(device)
    result = simple_add(copy(x * 2), copy(y)) + simple_add(x, y)
    torch.testing.assert_close(result.cpu(), a * 2 + b + (a + b))


def test_between_matrix_products(device: torch.device) -> None:
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    x, y = a.to(device), b.to(device)
    result = simple_add(x @ y, (x @ y).t()) @ y
    expected = (a @ b + (a @ b).t()) @ b
    torch.testing.assert_close(result.cpu(), expected, rtol=1e-4, atol=1e-3)


def test_registered_while_the_client_is_there(device: torch.device) -> None:
    assert_client_is_usable(device)
    XLAC._xla_register_custom_call_target("late_copy", host_kernel("TestCopy"), "CUDA")
    x = torch.randn(100)
    result = call("late_copy", [x.to(device)], struct.pack("<q", 100))
    assert torch.equal(result.cpu(), x)


def test_registered_again(device: torch.device) -> None:
    XLAC._xla_register_custom_call_target("again", host_kernel("TestCopy"), "CUDA")
    XLAC._xla_register_custom_call_target("again", host_kernel("TestCopy"), "CUDA")
    x = torch.randn(100)
    copied = call("again", [x.to(device)], struct.pack("<q", 100))
    XLAC._xla_register_custom_call_target("again", host_kernel("TestFail"), "CUDA")
    assert torch.equal(copied.cpu(), x)
    with pytest.raises(RuntimeError, match="TestFail: operand 1"):
        call("again", [x.to(device)], struct.pack("<q", 100)).cpu()
    assert_client_is_usable(device)


def test_typed_handler(device: torch.device) -> None:
    XLAC._xla_register_custom_call_target(
        "TestFfiAddScaled", host_kernel("TestFfiAddScaled"), "CUDA", api_version=1
    )
    assert "TestFfiAddScaled" in XLAC._xla_registered_custom_call_targets("CUDA", "ffi")
    a, b = torch.randn(1000), torch.randn(1000)

    def add(x: torch.Tensor, y: torch.Tensor, attributes: str) -> list[torch.Tensor]:
        return XLAC._xla_custom_call(
            [x, y], "TestFfiAddScaled", [[1000]], [torch.float32], False, attributes, 4, {}
        )[0]

    result = add(a.to(device), b.to(device), "{scale = 3 : i64}")
    torch.testing.assert_close(result.cpu(), a + 3 * b)
    with pytest.raises(RuntimeError, match="expected F32 but got S32"):
        add(a.to(torch.int32).to(device), b.to(device), "{scale = 3 : i64}").cpu()
    assert_client_is_usable(device)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("TestFail", r"TestFail: operand 1 \(b\): expected 3 elements"),
        ("TestBadLaunch", "CustomCall failed: invalid"),
    ],
)
def test_a_failing_kernel_raises(device: torch.device, target: str, text: str) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match=text):
            call(target, [torch.zeros(3).to(device)]).cpu()
        assert_client_is_usable(device)


def test_a_wrong_payload_raises(device: torch.device) -> None:
    x = torch.zeros(3).to(device)
    with pytest.raises(
        RuntimeError, match="XlaGpuSimpleAdd: payload: expected the magic byte 1 but"
    ):
        XLAC._xla_gpu_custom_call([x, x], b"x", [[3]], [torch.float32], "XlaGpuSimpleAdd")[0].cpu()
    assert_client_is_usable(device)


def test_a_failed_result_in_a_later_program(device: torch.device) -> None:
    failed = call("TestFail", [torch.zeros(3).to(device)])
    with pytest.raises(RuntimeError):
        torch_xla.sync(wait=True)
        failed.cpu()
    with pytest.raises(RuntimeError):
        (failed + 1).cpu()
    del failed
    assert_client_is_usable(device)


def test_unknown_target(device: torch.device) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="NoSuchTarget"):
            call("NoSuchTarget", [torch.zeros(3).to(device)]).cpu()
    assert_client_is_usable(device)


def test_a_loop_compiles_once_and_keeps_no_memory(device: torch.device) -> None:
    x = torch.randn(1 << 20).to(device)
    y = torch.randn(1 << 20).to(device)
    torch_xla.sync()

    def steps(count: int) -> int:
        nonlocal x
        for _ in range(count):
            x = simple_add(x, y) * 0.5
            torch_xla.sync()
        xm.wait_device_ops()
        gc.collect()
        return xm.get_memory_info(device)["bytes_used"]

    before = steps(10)
    compiled = compilations()
    after = steps(1000)
    assert compilations() == compiled
    assert after <= before, f"{before} bytes before 1,000 executions, {after} after"


def test_another_payload_is_another_program(device: torch.device) -> None:
    x = torch.randn(64).to(device)
    whole = call("TestCopy", [x], struct.pack("<q", 64)).cpu()
    compiled = compilations()
    call("TestCopy", [x], struct.pack("<q", 32)).cpu()
    assert compilations() == compiled + 1
    call("TestCopy", [x], struct.pack("<q", 64)).cpu()
    assert compilations() == compiled + 1
    assert torch.equal(whole, x.cpu())


def test_memory_statistics(device: torch.device) -> None:
    """PJRT_Device_MemoryStats_Args grew since 2.8.1: its results come back all the same."""
    info = xm.get_memory_info(device)
    assert 0 < info["bytes_used"] < info["bytes_limit"]
