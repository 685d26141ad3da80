"""The IR node, and the functions that replace the upstream binary's."""

import ctypes
import importlib.util
import os
import threading
from types import ModuleType

import pytest
import torch
import torch_xla
from testing.xla import XLAC, custom_call_lines

# torch_xla::BuildGpuCustomCall(vector<XlaOp> const&, Shape const&, string const&[, string const&])
BUILD = (
    "_ZN9torch_xla18BuildGpuCustomCallERKSt6vectorIN3xla5XlaOpESaIS2_EERKNS1_5ShapeERKNSt7__cxx1112"
    "basic_stringIcSt11char_traitsIcESaIcEEE"
)
BUILD_WITH_TARGET = BUILD + "SH_"


class DlInfo(ctypes.Structure):
    _fields_ = [
        ("fname", ctypes.c_char_p),
        ("fbase", ctypes.c_void_p),
        ("sname", ctypes.c_char_p),
        ("saddr", ctypes.c_void_p),
    ]


def defined_in(library: ctypes.CDLL, symbol: str) -> str:
    """The path of the library in which `library` finds `symbol`."""
    info = DlInfo()
    address = ctypes.cast(getattr(library, symbol), ctypes.c_void_p)
    assert ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    return info.fname.decode()


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("node_probe", os.environ["NODE_PROBE"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_clone_keeps_everything(device: torch.device, probe: ModuleType) -> None:
    node, clone = probe.node_and_clone(torch.zeros(3).to(device))
    assert clone == node


def test_to_string_names_everything(device: torch.device, probe: ModuleType) -> None:
    (text, _), _ = probe.node_and_clone(torch.zeros(3).to(device))
    assert "xla::gpu_custom_call" in text
    for part in (
        'target="Probe"',
        r'payload="a\x00\""',
        "api_version=3",
        "has_side_effect=1",
        "row_major=1",
        "single_result_is_tuple=1",
        "operand_type=11",
        'key="value"',
    ):
        assert part in text


@pytest.mark.parametrize("symbol", [BUILD, BUILD_WITH_TARGET], ids=["3 arguments", "4 arguments"])
def test_build_gpu_custom_call_is_the_front_librarys(symbol: str) -> None:
    front = XLAC.__file__
    assert defined_in(ctypes.CDLL(front), symbol) == front


def test_the_upstream_binarys_own_callers_get_row_major_operands(
    device: torch.device, probe: ModuleType
) -> None:
    """Upstream's tensor_methods::gpu_custom_call builds through our BuildGpuCustomCall."""
    x = torch.zeros(2, 3).to(device)
    (line,) = custom_call_lines(*probe.upstream_gpu_custom_call(x.t(), "payload", [3, 2]))
    assert 'custom_call_target="triton_kernel_call"' in line
    assert "operand_layout_constraints={f32[3,2]{1,0}}" in line
    assert "api_version=API_VERSION_STATUS_RETURNING," in line


def test_a_shape_outlives_the_operation_that_another_thread_computes(
    device: torch.device, probe: ModuleType
) -> None:
    function = ctypes.CDLL(XLAC.__file__)._ZNK9torch_xla9XLATensor5shapeEv
    address = ctypes.cast(function, ctypes.c_void_p).value
    others: list[torch.Tensor] = []

    def compute() -> None:
        torch_xla.sync(wait=True)
        # In the operation's memory, if it is free.
        others.extend(torch.zeros(n, n + 1, device=device).exp() for n in range(100, 600))

    def in_another_thread() -> None:
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()

    in_another_thread()  # from now on threads are several
    for _ in range(4):
        others.clear()
        x = torch.zeros(2, 3, device=device).exp()
        assert probe.shape_across(address, x, in_another_thread) == "f32[2,3]"
