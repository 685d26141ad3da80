// XlaGpuQuantizeRows for CUDA.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/common/vector.cuh"
#include "kernels/quantize_rows/quantize_rows.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::quantize_rows {
namespace {

constexpr int kMostThreads = 256;

// The largest of the block's numbers, in all threads.
__device__ uint32_t LargestOfBlock(uint32_t value) {
  __shared__ uint32_t of_warps[kMostThreads / 32];
  value = __reduce_max_sync(0xffffffff, value);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned i = 0; i < blockDim.x / 32; ++i)
    value = max(value, of_warps[i]);
  return value;
}

// Each block reads one row twice; the second read hits the cache.
template <typename T, int kCount>
__global__ void __launch_bounds__(kMostThreads)
    QuantizeKernel(const T* x, uint8_t* quantized, float* scale,
                   int64_t num_columns, float least) {
  using From = Vector<T, kCount>;
  using To = Vector<uint8_t, kCount>;
  const int64_t row = blockIdx.x, count = num_columns / kCount;
  const From* const from = reinterpret_cast<const From*>(x + row * num_columns);
  To* const to = reinterpret_cast<To*>(quantized + row * num_columns);
  // The bits of non-negative floats compare like the floats, and NaN is the
  // largest.
  uint32_t bits = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const From loaded = from[i];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      bits = max(bits, __float_as_uint(fabsf(ToFloat(loaded.values[j]))));
    }
  }
  const float quotient = __uint_as_float(LargestOfBlock(bits)) / kLargest;
  const float row_scale = quotient < least ? least : quotient;
  const float inverse = 1 / row_scale;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) {
    const From loaded = from[i];
    To rounded;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      rounded.values[j] = __nv_cvt_float_to_fp8(
          ToFloat(loaded.values[j]) * inverse, __NV_SATFINITE, __NV_E4M3);
    }
    to[i] = rounded;
  }
  if (threadIdx.x == 0) scale[row] = row_scale;
}

template <typename T>
Status Launch(cudaStream_t stream, AnyBuffer x, AnyResult quantized,
              AnyResult scale, float least) {
  constexpr int kCount = 16 / sizeof(T);
  const T* const from = x.data<T>();
  auto* const to = static_cast<uint8_t*>(quantized.untyped_data());
  const int64_t num_columns = x.dim(1);
  // XLA aligns its allocations, but may pass a kernel a slice of one.
  const bool is_aligned = num_columns % kCount == 0 &&
                          reinterpret_cast<uintptr_t>(from) % 16 == 0 &&
                          reinterpret_cast<uintptr_t>(to) % kCount == 0;
  const auto kernel =
      is_aligned ? &QuantizeKernel<T, kCount> : &QuantizeKernel<T, 1>;
  const int64_t count = is_aligned ? num_columns / kCount : num_columns;
  const int threads = static_cast<int>(
      std::clamp<int64_t>((count + 31) / 32 * 32, 32, kMostThreads));
  kernel<<<static_cast<unsigned>(x.dim(0)), threads, 0, stream>>>(
      from, to, scale.data<float>(), num_columns, least);
  return CudaStatus(cudaGetLastError());
}

Status LaunchQuantizeRows(cudaStream_t stream, AnyBuffer x, AnyResult quantized,
                          AnyResult scale, const QuantizeRowsParams& params) {
  if (x.dim(0) == 0) return Status::Ok();
  if (x.dim(0) > INT32_MAX) {
    return Status::Error("expected at most ", INT32_MAX, " rows but got ",
                         x.dim(0));
  }
  const float least = static_cast<float>(params.least_scale);
  switch (x.dtype()) {
    case F16:
      return Launch<__half>(stream, x, quantized, scale, least);
    case BF16:
      return Launch<__nv_bfloat16>(stream, x, quantized, scale, least);
    default:  // F32
      return Launch<float>(stream, x, quantized, scale, least);
  }
}

}  // namespace
}  // namespace torch_xla_ext::quantize_rows

XLA_KERNEL_CUDA(XlaGpuQuantizeRows, torch_xla_ext::quantize_rows::kQuantizeRows,
                torch_xla_ext::quantize_rows::LaunchQuantizeRows,
                torch_xla_ext::kCommandBufferCompatible);
