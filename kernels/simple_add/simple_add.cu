// XlaGpuSimpleAdd for CUDA.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/simple_add/simple_add.h"
#include "xla/service/custom_call_target_registry.h"

namespace torch_xla_ext {
namespace {

constexpr int kThreads = 256;
// 16-byte accesses in flight for each thread and operand.
constexpr int kUnroll = 4;
// CUDA's limit on gridDim.x is far above; the grid-stride loop does the rest.
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

// Integers wrap, as torch's do: in unsigned arithmetic, where that is defined.
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
// A sum of two 16-bit floats is rounded once from float, as torch does it.
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
cudaError_t LaunchAdd(cudaStream_t stream, void** buffers, int64_t count) {
  const T* a = static_cast<const T*>(buffers[0]);
  const T* b = static_cast<const T*>(buffers[1]);
  T* out = static_cast<T*>(buffers[2]);
  // XLA aligns its allocations, but may hand a kernel a slice of one.
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(a) |
                              reinterpret_cast<uintptr_t>(b) |
                              reinterpret_cast<uintptr_t>(out);
  using P = Packet<T>;
  int64_t done = 0;
  if (addresses % sizeof(P) == 0) {
    const int64_t packets = count / P::kSize;
    const cudaError_t error = LaunchAddKernel(
        stream, reinterpret_cast<const P*>(a), reinterpret_cast<const P*>(b),
        reinterpret_cast<P*>(out), packets);
    if (error != cudaSuccess) return error;
    done = packets * P::kSize;
  }
  return LaunchAddKernel(stream, a + done, b + done, out + done, count - done);
}

cudaError_t LaunchAdd(cudaStream_t stream, void** buffers,
                      const SimpleAddDescriptor& descriptor) {
  switch (descriptor.dtype) {
    case SimpleAddDType::kS32:
      return LaunchAdd<int32_t>(stream, buffers, descriptor.count);
    case SimpleAddDType::kS64:
      return LaunchAdd<int64_t>(stream, buffers, descriptor.count);
    case SimpleAddDType::kF16:
      return LaunchAdd<__half>(stream, buffers, descriptor.count);
    case SimpleAddDType::kF32:
      return LaunchAdd<float>(stream, buffers, descriptor.count);
    case SimpleAddDType::kF64:
      return LaunchAdd<double>(stream, buffers, descriptor.count);
    case SimpleAddDType::kBF16:
      return LaunchAdd<__nv_bfloat16>(stream, buffers, descriptor.count);
  }
  return cudaErrorInvalidValue;  // ParseSimpleAddDescriptor let nothing else by
}

}  // namespace
}  // namespace torch_xla_ext

// API version 2 or 3 of the untyped ABI: `buffers` are a, b, out.
extern "C" void XlaGpuSimpleAdd(cudaStream_t stream, void** buffers,
                                const char* opaque, size_t opaque_len,
                                XlaCustomCallStatus* status) {
  torch_xla_ext::SimpleAddDescriptor descriptor;
  if (!torch_xla_ext::ParseSimpleAddDescriptor(opaque, opaque_len, &descriptor,
                                               status)) {
    return;
  }
  const cudaError_t error =
      torch_xla_ext::LaunchAdd(stream, buffers, descriptor);
  if (error != cudaSuccess) {
    const std::string text = std::string("XlaGpuSimpleAdd: launch failed: ") +
                             cudaGetErrorName(error) + ": " +
                             cudaGetErrorString(error);
    XlaCustomCallStatusSetFailure(status, text.data(), text.size());
  }
}

XLA_REGISTER_CUSTOM_CALL_TARGET(XlaGpuSimpleAdd, "CUDA");
