"""Kernels of CuPy, Numba, cuTile, CuTe-DSL and Triton on a GPU give their own launch's results.

Each test needs its library, and some a file that is compiled elsewhere:

- CUTE_AXPY: a library that CuTe-DSL has exported, with ``axpy(x, y, out, factor)``
- TRITON_KERNELS: a folder with tests/launchers' kernels, as TritonKernel.save writes them
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import torch_xla_ext
from torch_xla_ext import cuda_kernel

AXPY = """
extern "C" __global__ void axpy(const float* x, const float* y, float* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * sinf(x[i]) + y[i];
}
template <typename T>
__global__ void scale(const T* x, T* out, T factor) {
  out[blockIdx.x * blockDim.x + threadIdx.x] = factor * x[blockIdx.x * blockDim.x + threadIdx.x];
}
"""
N = 100_000
BLOCKS = -(-N // 256)


def bits(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(N)


@pytest.fixture
def y() -> Tensor:
    return torch.randn(N)


def test_cupy(x: Tensor, y: Tensor, device: torch.device) -> None:
    cupy = pytest.importorskip("cupy")
    kernel = cupy.RawKernel(AXPY, "axpy", options=("--use_fast_math",))
    out = cupy.zeros(N, np.float32)
    arrays = cupy.asarray(x.numpy()), cupy.asarray(y.numpy()), out
    kernel((BLOCKS,), (256,), (*arrays, np.float32(2), np.int32(N)))
    (result,) = cuda_kernel(kernel)[BLOCKS, 256](
        x.to(device), y.to(device), 2.0, N, outputs={"out": x}
    )
    assert bits(result) == cupy.asnumpy(out).tobytes()


def test_a_module_of_cupy(x: Tensor, device: torch.device) -> None:
    cupy = pytest.importorskip("cupy")
    module = cupy.RawModule(code=AXPY, name_expressions=["scale<double>"], options=("-std=c++17",))
    kernel = module.get_function("scale<double>")
    given, out = x[:1024].double(), cupy.zeros(1024)
    kernel((4,), (256,), (cupy.asarray(given.numpy()), out, 3.0))
    (result,) = cuda_kernel(kernel)[4, 256](given.to(device), 3.0, outputs=[given])
    assert bits(result) == cupy.asnumpy(out).tobytes()


def numba_kernels() -> tuple[object, object]:
    cuda = pytest.importorskip("numba.cuda")
    import math

    @cuda.jit(fastmath=True)
    def axpy(x, y, out, a):  # noqa: ANN001, ANN202
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a * math.sin(x[i]) + y[i]

    @cuda.jit("void(float32[:,:], float32[:,:], int32)")
    def rotate(x, out, by):  # noqa: ANN001, ANN202
        i, j = cuda.grid(2)
        if i < out.shape[0] and j < out.shape[1]:
            out[i, j] = x[i, (j + by) % x.shape[1]]

    return axpy, rotate


def test_numba(x: Tensor, y: Tensor, device: torch.device) -> None:
    axpy, _ = numba_kernels()
    from numba import cuda

    out = cuda.device_array(N, np.float32)
    axpy[BLOCKS, 256](cuda.to_device(x.numpy()), cuda.to_device(y.numpy()), out, 2.0)
    (result,) = cuda_kernel(axpy)[BLOCKS, 256](x.to(device), y.to(device), 2.0, outputs={"out": x})
    assert bits(result) == out.copy_to_host().tobytes()


def test_numba_with_a_signature_of_its_own(device: torch.device) -> None:
    _, rotate = numba_kernels()
    x = torch.randn(33, 70)
    (result,) = cuda_kernel(rotate)[(3, 5), (16, 16)](x.to(device), 3, outputs={"out": x})
    assert torch.equal(result.cpu(), x.roll(-3, 1))


def test_numba_in_place_and_dynamic_shared_memory(device: torch.device) -> None:
    cuda = pytest.importorskip("numba.cuda")
    from numba import float32

    @cuda.jit
    def reverse(x):  # noqa: ANN001, ANN202
        buffer = cuda.shared.array(0, float32)
        i = cuda.threadIdx.x
        buffer[i] = x[i]
        cuda.syncthreads()
        x[i] = buffer[x.size - 1 - i]

    x = torch.randn(512)
    before = x.to(device)
    (after,) = cuda_kernel(reverse)[1, 512, 4 * 512](before, aliases=["x"])
    assert torch.equal(after.cpu(), x.flip(0))
    assert torch.equal(before.cpu(), x)


def test_an_operator_of_numba(x: Tensor, y: Tensor, device: torch.device) -> None:
    axpy, _ = numba_kernels()
    kernel = cuda_kernel(
        axpy,
        signature="(x: F32[n], y: F32[n]) -> (out: F32[n])",
        parameters="a: f32",
        grid=lambda call: -(-call["n"] // 256),
        block=256,
    )
    operator = torch_xla_ext.define_operator(
        "gpu_library_kernels::axpy(Tensor x, Tensor y, float a) -> Tensor", target=kernel
    )
    compiled = torch.compile(lambda x, y: operator(x, y, 0.5) * 2, backend="openxla")
    result = compiled(x.to(device), y.to(device))
    torch.testing.assert_close(result.cpu(), (0.5 * x.sin() + y) * 2, rtol=1e-4, atol=1e-4)


def test_cutile(device: torch.device) -> None:
    ct = pytest.importorskip("cuda.tile")
    cupy = pytest.importorskip("cupy")

    @ct.kernel
    def transpose(x, out, factor, TILE: ct.Constant[int]):  # noqa: ANN001, ANN202, N803
        i, j = ct.bid(0), ct.bid(1)
        tile = ct.load(x, index=(i, j), shape=(TILE, TILE))
        ct.store(out, index=(j, i), tile=ct.sin(ct.transpose(tile)) * factor)

    for rows, columns in ((64, 48), (100, 33)):
        x = torch.randn(rows, columns)
        grid = (-(-rows // 16), -(-columns // 16), 1)
        out = cupy.zeros((columns, rows), np.float32)
        stream = cupy.cuda.get_current_stream()
        ct.launch(stream, grid, transpose, (cupy.asarray(x.numpy()), out, 2.0, 16))
        stream.synchronize()
        (result,) = cuda_kernel(transpose)[grid](x.to(device), 2.0, 16, outputs={"out": x.t()})
        assert bits(result) == cupy.asnumpy(out).tobytes()
        torch.testing.assert_close(result.cpu(), x.t().sin() * 2, rtol=1e-4, atol=1e-4)


def test_cute(x: Tensor, y: Tensor, device: torch.device) -> None:
    library = os.environ.get("CUTE_AXPY") or pytest.skip("CUTE_AXPY is not set")
    tvm_ffi = pytest.importorskip("tvm_ffi")
    cupy = pytest.importorskip("cupy")
    axpy = tvm_ffi.load_module(library).axpy
    out = cupy.zeros(N, np.float32)
    axpy(cupy.asarray(x.numpy()), cupy.asarray(y.numpy()), out, 2.0)
    cupy.cuda.runtime.deviceSynchronize()
    (result,) = torch_xla_ext.tvm_ffi_call(
        axpy, x.to(device), y.to(device), 2.0, outputs={2: x}, cuda_graph=True
    )
    assert bits(result) == cupy.asnumpy(out).tobytes()


@pytest.mark.parametrize("version", ["3.4.0", "3.9.0"])
def test_kernels_of_tritons_newest(
    version: str, x: Tensor, y: Tensor, device: torch.device
) -> None:
    folder = os.environ.get("TRITON_KERNELS") or pytest.skip("TRITON_KERNELS is not set")

    def load(name: str) -> torch_xla_ext.TritonKernel:
        return torch_xla_ext.TritonKernel.load(Path(folder, f"{name}_{version}.json"))

    rows, weight = torch.randn(4096, 512), torch.randn(512)
    (result,) = torch_xla_ext.triton_call(
        load("rms_norm"),
        *(rows.to(device), weight.to(device)),
        **{"outputs": [rows], "columns": 512, "epsilon": 0.5, "grid": 4096},
    )
    expected = torch.nn.functional.rms_norm(rows, (512,), weight, 0.5)
    torch.testing.assert_close(result.cpu(), expected)
    pair = x.to(device), y.to(device)
    (result,) = torch_xla_ext.triton_call(
        load("scaled_sum"), pair, outputs={"y_ptr": x}, sizes=(N, 3.0), grid=BLOCKS
    )
    torch.testing.assert_close(result.cpu(), x * 3 + y)
    (result,) = torch_xla_ext.triton_call(
        load("doubled"), pair[0], outputs=[x], n=N, grid=-(-N // 128)
    )
    assert torch.equal(result.cpu(), x * 2)


def test_helion(device: torch.device) -> None:
    helion = pytest.importorskip("helion")
    import helion.language as hl

    @helion.kernel(config=helion.Config(block_sizes=[32, 32]))
    def add(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(out.size()):
            out[tile] = x[tile] + y[tile]
        return out

    x = torch.randn(100, 33)
    assert torch.equal(add(x.to(device), x.to(device)).cpu(), x * 2)
