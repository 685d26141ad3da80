"""CUDA kernels for tests on a GPU, for the cuda_kernel of torch_xla_ext or of torch_xla_gpu."""

from collections.abc import Callable

AXPY = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
template <typename T>
__global__ void axpy(float a, const T* x, const T* y, T* out, int64_t n) {
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = static_cast<T>(a * static_cast<float>(x[i]) + static_cast<float>(y[i]));
}
"""
# Reverses x by way of shared memory.
SHARED = """
__global__ void reverse(const float* x, float* out, int n) {
  extern __shared__ float buffer[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) buffer[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = buffer[n - 1 - i];
}
"""


def not_on_a_gpu(*args: object) -> object:
    raise AssertionError("a GPU runs the kernel, not its reference")


def axpy(cuda_kernel: Callable) -> Callable:
    return cuda_kernel(
        AXPY,
        "axpy<{T}>",
        signature="(x: T[*shape], y: T[*shape]) -> (out: T[*shape]) where T: F32 | F16 | BF16",
        parameters="a: f32",
        arguments="a x y out out.size",
        grid=lambda call: -(-call["x"].size // 256),
        block=256,
        reference=not_on_a_gpu,
    )
