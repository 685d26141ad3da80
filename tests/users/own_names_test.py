"""Kernels as users write, register and edit them: any name works, and an edit takes effect."""

import ctypes
import struct
from pathlib import Path

import pytest
import torch
import torch_xla
from testing import libraries
from testing.xla import capsule

import torch_xla_ext

# A tutorial's kernel, with the name of a kernel in this wheel.
SOURCE = """
#include <cstddef>
#include <cstdint>
#include <cstring>
extern "C" void XlaGpuSimpleAdd(void* out, const void** in, const char* opaque, size_t, void*) {
  int32_t n;
  std::memcpy(&n, opaque, sizeof n);
  const float *a = static_cast<const float*>(in[0]), *b = static_cast<const float*>(in[1]);
  for (int32_t i = 0; i < n; ++i) static_cast<float*>(out)[i] = a[i] + b[i];
}
"""


def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    payload = struct.pack("<i", a.numel()).decode("latin1")
    (result,) = torch_xla._XLAC._xla_custom_call(
        [a, b], "XlaGpuSimpleAdd", [list(a.shape)], [a.dtype], False, payload, 3, {}
    )
    return result


@pytest.fixture
def operands() -> list[torch.Tensor]:
    return [torch.tensor(values, device="xla") for values in ([1.0, 2, 3], [10.0, 20, 30])]


def test_a_tutorials_script(tmp_path: Path, operands: list[torch.Tensor]) -> None:
    library = ctypes.CDLL(str(libraries.build(tmp_path / "add.cc", SOURCE)))
    address = ctypes.cast(library.XlaGpuSimpleAdd, ctypes.c_void_p).value
    torch_xla._XLAC._xla_register_custom_call_target("XlaGpuSimpleAdd", capsule(address), "Host")
    assert call(*operands).tolist() == [11, 22, 33]
    check_the_wheels_operator(operands)


def check_the_wheels_operator(operands: list[torch.Tensor]) -> None:
    """Checks that the wheel's operator keeps its kernel, although another kernel has its name."""
    for tensors in (operands, [x.cpu() for x in operands], [x.long() for x in operands]):
        assert torch_xla_ext.ops.simple_add(*tensors).tolist() == [11, 22, 33]


def test_edit_build_run(tmp_path: Path, operands: list[torch.Tensor]) -> None:
    """In one process, with one path, as in a notebook, an edited kernel is built and used."""
    for operator, expected in (("+", [11, 22, 33]), ("-", [-9, -18, -27]), ("*", [10, 40, 90])):
        source = SOURCE.replace("a[i] + b[i]", f"a[i] {operator} b[i]")
        library = libraries.build(tmp_path / "edited.cc", source)
        torch_xla_ext.register_custom_call("XlaGpuSimpleAdd", library, platform="Host")
        assert call(*operands).tolist() == expected
        check_the_wheels_operator(operands)
    torch_xla_ext.register_custom_call("XlaGpuSimpleAdd", library, platform="Host")
    assert call(*operands).tolist() == [10, 40, 90]


def test_from_another_path(tmp_path: Path, operands: list[torch.Tensor]) -> None:
    for name, operator, expected in (("a", "+", [11, 22, 33]), ("b", "-", [-9, -18, -27])):
        source = SOURCE.replace("a[i] + b[i]", f"a[i] {operator} b[i]")
        library = libraries.build(tmp_path / f"{name}.cc", source)
        torch_xla_ext.register_custom_call("XlaGpuSimpleAdd", library, platform="Host")
        assert call(*operands).tolist() == expected
