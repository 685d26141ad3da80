// XlaGpuSimpleAdd for CUDA.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/simple_add/simple_add.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::simple_add {
namespace {

constexpr int kThreads = 256;
// 16-byte accesses in flight for each thread and operand.
constexpr int kUnroll = 4;
// CUDA's limit on gridDim.x is much higher; the grid-stride loop covers the
// rest.
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

// Integers wrap, like torch's. The addition is unsigned, for which wrapping is
// defined.
__device__ int32_t Add(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) +
                              static_cast<uint32_t>(b));
}
__device__ int64_t Add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) +
                              static_cast<uint64_t>(b));
}
__device__ float Add(float a, float b) { return a + b; }
__device__ double Add(double a, double b) { return a + b; }
// Like in torch, a sum of two 16-bit floats is computed in float and rounded
// once.
__device__ __half Add(__half a, __half b) {
  return __float2half_rn(__half2float(a) + __half2float(b));
}
__device__ __nv_bfloat16 Add(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

// 16 bytes, loaded and stored at once.
template <typename T>
struct alignas(16) Packet {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

template <typename T>
__device__ Packet<T> Add(const Packet<T>& a, const Packet<T>& b) {
  Packet<T> sum;
#pragma unroll
  for (int i = 0; i < Packet<T>::kSize; ++i) {
    sum.values[i] = Add(a.values[i], b.values[i]);
  }
  return sum;
}

// Adds `count` elements of U: values, or packets of them. No __restrict__: XLA
// may give the result the buffer of an operand.
template <typename U>
__global__ void __launch_bounds__(kThreads)
    AddKernel(const U* a, const U* b, U* out, int64_t count) {
  const int64_t tile = int64_t{kThreads} * kUnroll;
  for (int64_t begin = blockIdx.x * tile + threadIdx.x; begin < count;
       begin += gridDim.x * tile) {
    U x[kUnroll], y[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t index = begin + i * kThreads;
      if (index < count) {
        x[i] = a[index];
        y[i] = b[index];
      }
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t index = begin + i * kThreads;
      if (index < count) out[index] = Add(x[i], y[i]);
    }
  }
}

template <typename U>
cudaError_t LaunchAddKernel(cudaStream_t stream, const U* a, const U* b, U* out,
                            int64_t count) {
  if (count == 0) return cudaSuccess;
  const int64_t tile = int64_t{kThreads} * kUnroll;
  const int64_t blocks = std::min((count + tile - 1) / tile, kMaxBlocks);
  AddKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a, b, out,
                                                                    count);
  return cudaGetLastError();
}

template <typename T>
Status LaunchAdd(cudaStream_t stream, AnyBuffer a, AnyBuffer b, AnyResult out) {
  const T* x = a.data<T>();
  const T* y = b.data<T>();
  T* sum = out.data<T>();
  const int64_t count = out.size();
  // XLA aligns its allocations, but may pass a kernel a slice of one.
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(x) |
                              reinterpret_cast<uintptr_t>(y) |
                              reinterpret_cast<uintptr_t>(sum);
  using P = Packet<T>;
  int64_t done = 0;
  if (addresses % sizeof(P) == 0) {
    const int64_t packets = count / P::kSize;
    XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(LaunchAddKernel(
        stream, reinterpret_cast<const P*>(x), reinterpret_cast<const P*>(y),
        reinterpret_cast<P*>(sum), packets)));
    done = packets * P::kSize;
  }
  return CudaStatus(
      LaunchAddKernel(stream, x + done, y + done, sum + done, count - done));
}

Status LaunchSimpleAdd(cudaStream_t stream, AnyBuffer a, AnyBuffer b,
                       AnyResult out) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckSimpleAddSize(out.size()));
  switch (a.dtype()) {
    case F16:
      return LaunchAdd<__half>(stream, a, b, out);
    case BF16:
      return LaunchAdd<__nv_bfloat16>(stream, a, b, out);
    case F32:
      return LaunchAdd<float>(stream, a, b, out);
    case F64:
      return LaunchAdd<double>(stream, a, b, out);
    case S32:
      return LaunchAdd<int32_t>(stream, a, b, out);
    default:  // the signature allows nothing else
      return LaunchAdd<int64_t>(stream, a, b, out);
  }
}

}  // namespace
}  // namespace torch_xla_ext::simple_add

XLA_KERNEL_CUDA(XlaGpuSimpleAdd, torch_xla_ext::simple_add::kSimpleAdd,
                torch_xla_ext::simple_add::LaunchSimpleAdd,
                torch_xla_ext::kCommandBufferCompatible);
