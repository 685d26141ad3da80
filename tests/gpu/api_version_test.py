"""Functions of API version 1, which tutorials use and which have no status, on any plugin."""

import ctypes
import struct

import torch
from testing.xla import XLAC

import torch_xla_ext

_COPY = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_size_t
)
_opaque: list[bytes] = []


@_COPY
def _copy(stream: int, buffers: object, opaque: int, length: int) -> None:
    """Copies as many bytes as the payload says, on the stream."""
    _opaque.append(ctypes.string_at(opaque, length))
    (size,) = struct.unpack("<i", _opaque[-1])
    copy = ctypes.CDLL("libcuda.so.1").cuMemcpyDtoDAsync_v2
    copy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    assert copy(buffers[1], buffers[0], size, stream) == 0


def test_a_function_without_a_status(device: torch.device) -> None:
    torch_xla_ext.register_custom_call("GpuApiVersion1", _copy, platform="CUDA")
    x = torch.arange(123.0)  # 492 bytes: the payload's first byte is not JSON's
    payload = struct.pack("<i", 4 * x.numel())
    (y,) = XLAC._xla_gpu_custom_call(
        [x.to(device)], payload, [x.shape], [x.dtype], "GpuApiVersion1", api_version=1
    )
    assert torch.equal(y.cpu(), x)
    assert set(_opaque) == {payload}


def test_a_payload_that_begins_like_json(device: torch.device) -> None:
    """`struct.pack("<i", 123)` is ``{`` and three zeros, which XLA does not read as JSON."""
    torch_xla_ext.register_custom_call("GpuApiVersion1", _copy, platform="CUDA")
    x = torch.arange(200, dtype=torch.uint8)
    (y,) = XLAC._xla_gpu_custom_call(
        [x.to(device)],
        struct.pack("<i", 123),
        [x.shape],
        [x.dtype],
        "GpuApiVersion1",
        api_version=1,
    )
    assert torch.equal(y.cpu()[:123], x[:123])
