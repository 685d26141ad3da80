// XlaGpuKvCacheUpdate and XlaGpuKvPagesUpdate for CUDA.
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <type_traits>

#include "kernels/common/vector.cuh"
#include "kernels/kv_cache_update/kv_cache_update.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::kv_cache_update {
namespace {

constexpr int kThreads = 256;
// Calls with at least this many vectors fill the GPU, whatever a thread's share
// is.
constexpr int64_t kManyVectors = 1 << 18;
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

// Division by a scale, rounded exactly like x / scale.
struct Scale {
  float value;
  float inverse;  // 0: too large or too small for DivideFast

  explicit Scale(double scale)
      : value(static_cast<float>(scale)), inverse(1 / value) {
    const float size = std::abs(value);
    if (!(size > 1e-30f && size < 1e30f)) inverse = 0;
  }
  // A quotient and its correction (Markstein 1990), unless the result in
  // F8E4M3FN is 0 or the largest value: there, the remainder may be out of
  // float's range.
  __device__ float DivideFast(float x) const {
    const float quotient = x * inverse;
    const float size = fabsf(quotient);
    const float rest = fmaf(-quotient, value, x);
    return size > 1e-6f && size < 1e6f ? fmaf(rest, inverse, quotient)
                                       : quotient;
  }
  __device__ float DivideSlowly(float x) const { return x / value; }
};

// kCount values as Cs; only those of F8E4M3FN are divided by the scale.
template <typename C, typename T, int kCount>
__device__ Vector<C, kCount> Convert(const Vector<T, kCount>& from,
                                     const Scale& scale) {
  Vector<C, kCount> to;
  if constexpr (std::is_same_v<C, T>) {
    to = from;
  } else if constexpr (std::is_same_v<C, __nv_fp8_e4m3>) {
    if (scale.inverse != 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        to.values[i].__x =
            __nv_cvt_float_to_fp8(scale.DivideFast(ToFloat(from.values[i])),
                                  __NV_SATFINITE, __NV_E4M3);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        to.values[i].__x =
            __nv_cvt_float_to_fp8(scale.DivideSlowly(ToFloat(from.values[i])),
                                  __NV_SATFINITE, __NV_E4M3);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float value = ToFloat(from.values[i]);
      if constexpr (std::is_same_v<C, float>) {
        to.values[i] = value;
      } else if constexpr (std::is_same_v<C, __half>) {
        to.values[i] = __float2half_rn(value);
      } else {
        to.values[i] = __float2bfloat16_rn(value);
      }
    }
  }
  return to;
}

struct UpdateArgs {
  explicit UpdateArgs(const KvCacheUpdateParams& params)
      : key_scale(params.key_scale), value_scale(params.value_scale) {}

  const void* key;           // T[num_tokens, num_kv_heads, head_dim]
  const void* value;         // the same
  const void* slot_mapping;  // S32 or S64 [num_tokens]
  bool wide_slots;
  // The beginning of the caches' rows of slot 0 and kv head 0.
  void* key_cache;
  void* value_cache;
  int64_t num_slots;
  int64_t num_tokens;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  // The distance between kv heads in the cache, in elements.
  int64_t head_stride;
  Scale key_scale;
  Scale value_scale;

  __device__ int64_t Slot(int64_t token) const {
    return wide_slots ? static_cast<const int64_t*>(slot_mapping)[token]
                      : static_cast<const int32_t*>(slot_mapping)[token];
  }
};

// The unit of work is a vector of kCount elements of a token's keys and of its
// values; each thread has kUnroll of them in flight.
template <typename T, typename C, int kCount, int kUnroll>
__global__ void __launch_bounds__(kThreads)
    UpdateKernel(const __grid_constant__ UpdateArgs args) {
  using From = Vector<T, kCount>;
  using To = Vector<C, kCount>;
  const uint32_t head_vectors = args.head_dim / kCount;
  const uint32_t token_vectors = args.num_kv_heads * head_vectors;
  const int64_t count = args.num_tokens * token_vectors;
  const int64_t slot_stride = args.head_stride * args.num_kv_heads;
  const From* const key = static_cast<const From*>(args.key);
  const From* const value = static_cast<const From*>(args.value);
  const int64_t tile = int64_t{kThreads} * kUnroll;
  for (int64_t begin = blockIdx.x * tile + threadIdx.x; begin < count;
       begin += gridDim.x * tile) {
    From keys[kUnroll], values[kUnroll];
    int64_t offsets[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const int64_t index = begin + i * kThreads;
      offsets[i] = -1;
      if (index >= count) continue;
      // 32-bit division is much cheaper; the few large calls pay for it.
      int64_t token;
      uint32_t vector;
      if (count <= UINT32_MAX) {
        token = static_cast<uint32_t>(index) / token_vectors;
        vector = static_cast<uint32_t>(index) % token_vectors;
      } else {
        token = index / token_vectors;
        vector = static_cast<uint32_t>(index % token_vectors);
      }
      const int64_t slot = args.Slot(token);
      if (slot < 0 || slot >= args.num_slots) continue;
      keys[i] = key[index];
      values[i] = value[index];
      offsets[i] = slot * slot_stride +
                   vector / head_vectors * args.head_stride +
                   vector % head_vectors * kCount;
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      if (offsets[i] < 0) continue;
      *reinterpret_cast<To*>(static_cast<C*>(args.key_cache) + offsets[i]) =
          Convert<C>(keys[i], args.key_scale);
      *reinterpret_cast<To*>(static_cast<C*>(args.value_cache) + offsets[i]) =
          Convert<C>(values[i], args.value_scale);
    }
  }
}

// A slot beyond the cache is an error; a negative one means "skip this token".
__global__ void ReportOutOfRangeKernel(UpdateArgs args, bool pages) {
  const int64_t tile = int64_t{gridDim.x} * blockDim.x;
  for (int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       token < args.num_tokens; token += tile) {
    const int64_t slot = args.Slot(token);
    if (slot >= args.num_slots) {
      printf(
          "XlaGpuKv%sUpdate: slot_mapping[%lld] = %lld is not in [0, %lld)\n",
          pages ? "Pages" : "Cache", static_cast<long long>(token),
          static_cast<long long>(slot), static_cast<long long>(args.num_slots));
    }
  }
}

template <typename T, typename C, int kCount, int kUnroll>
Status LaunchUpdateKernel(cudaStream_t stream, int64_t count,
                          const UpdateArgs& args) {
  const int64_t tile = int64_t{kThreads} * kUnroll;
  const int64_t blocks = std::min((count + tile - 1) / tile, kMaxBlocks);
  UpdateKernel<T, C, kCount, kUnroll>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError());
}

template <typename T, typename C, int kCount>
Status LaunchVectors(cudaStream_t stream, const UpdateArgs& args) {
  const int64_t count =
      args.num_tokens * args.num_kv_heads * (args.head_dim / kCount);
  // The conversion to F8E4M3FN needs many registers.
  if constexpr (kCount > 1 && !std::is_same_v<C, __nv_fp8_e4m3>) {
    if (count >= kManyVectors) {
      return LaunchUpdateKernel<T, C, kCount, 4>(stream, count, args);
    }
  }
  return LaunchUpdateKernel<T, C, kCount, 2>(stream, count, args);
}

template <typename T, typename C>
Status LaunchTypes(cudaStream_t stream, const UpdateArgs& args) {
  constexpr int kCount = 16 / std::max(sizeof(T), sizeof(C));
  // XLA aligns its allocations, but may pass a kernel a slice of one.
  const uintptr_t operands = reinterpret_cast<uintptr_t>(args.key) |
                             reinterpret_cast<uintptr_t>(args.value);
  const uintptr_t caches = reinterpret_cast<uintptr_t>(args.key_cache) |
                           reinterpret_cast<uintptr_t>(args.value_cache);
  if (args.head_dim % kCount == 0 && operands % (kCount * sizeof(T)) == 0 &&
      caches % (kCount * sizeof(C)) == 0) {
    return LaunchVectors<T, C, kCount>(stream, args);
  }
  return LaunchVectors<T, C, 1>(stream, args);
}

template <typename T>
Status LaunchCacheType(cudaStream_t stream, DType cache,
                       const UpdateArgs& args) {
  switch (cache) {
    case F16:
      return LaunchTypes<T, __half>(stream, args);
    case BF16:
      return LaunchTypes<T, __nv_bfloat16>(stream, args);
    case F32:
      return LaunchTypes<T, float>(stream, args);
    default:  // the signature allows nothing else
      return LaunchTypes<T, __nv_fp8_e4m3>(stream, args);
  }
}

// Fills in the members common to both targets, and launches. The caller has set
// the caches' members.
Status LaunchUpdate(cudaStream_t stream, AnyBuffer key, AnyBuffer value,
                    AnyBuffer slot_mapping, DType cache,
                    const KvCacheUpdateParams& params, bool pages,
                    UpdateArgs args) {
  if (key.size() == 0) return Status::Ok();
  if (key.dim(1) * key.dim(2) > INT32_MAX) {
    return Status::Error("expected num_kv_heads * head_dim to be at most ",
                         INT32_MAX, " but got ", key.dim(1) * key.dim(2));
  }
  args.key = key.untyped_data();
  args.value = value.untyped_data();
  args.slot_mapping = slot_mapping.untyped_data();
  args.wide_slots = slot_mapping.dtype() == S64;
  args.num_tokens = key.dim(0);
  args.num_kv_heads = static_cast<uint32_t>(key.dim(1));
  args.head_dim = static_cast<uint32_t>(key.dim(2));
  if (params.report_out_of_range) {
    const int64_t blocks = (args.num_tokens + kThreads - 1) / kThreads;
    ReportOutOfRangeKernel<<<static_cast<unsigned>(
                                 std::min(blocks, kMaxBlocks)),
                             kThreads, 0, stream>>>(args, pages);
    XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaGetLastError()));
  }
  switch (key.dtype()) {
    case F16:
      return LaunchCacheType<__half>(stream, cache, args);
    case BF16:
      return LaunchCacheType<__nv_bfloat16>(stream, cache, args);
    default:  // F32
      return LaunchCacheType<float>(stream, cache, args);
  }
}

Status LaunchKvCacheUpdate(cudaStream_t stream, AnyBuffer key, AnyBuffer value,
                           AnyBuffer slot_mapping, AnyBuffer key_cache,
                           AnyBuffer value_cache, AnyResult new_key_cache,
                           AnyResult new_value_cache,
                           const KvCacheUpdateParams& params) {
  UpdateArgs args(params);
  args.key_cache = new_key_cache.untyped_data();
  args.value_cache = new_value_cache.untyped_data();
  args.num_slots = key_cache.dim(0) * key_cache.dim(1);
  args.head_stride = key_cache.dim(3);
  return LaunchUpdate(stream, key, value, slot_mapping, key_cache.dtype(),
                      params, /*pages=*/false, args);
}

Status LaunchKvPagesUpdate(cudaStream_t stream, AnyBuffer key, AnyBuffer value,
                           AnyBuffer slot_mapping, AnyBuffer kv_pages,
                           AnyResult new_kv_pages,
                           const KvCacheUpdateParams& params) {
  UpdateArgs args(params);
  char* const pages = static_cast<char*>(new_kv_pages.untyped_data());
  args.key_cache = pages;
  args.value_cache =
      pages + kv_pages.dim(3) * FindDType(kv_pages.dtype())->byte_width;
  args.num_slots = kv_pages.dim(0) * kv_pages.dim(1);
  args.head_stride = 2 * kv_pages.dim(3);
  return LaunchUpdate(stream, key, value, slot_mapping, kv_pages.dtype(),
                      params, /*pages=*/true, args);
}

}  // namespace
}  // namespace torch_xla_ext::kv_cache_update

XLA_KERNEL_CUDA(XlaGpuKvCacheUpdate,
                torch_xla_ext::kv_cache_update::kKvCacheUpdate,
                torch_xla_ext::kv_cache_update::LaunchKvCacheUpdate,
                torch_xla_ext::kCommandBufferCompatible);
XLA_KERNEL_CUDA(XlaGpuKvPagesUpdate,
                torch_xla_ext::kv_cache_update::kKvPagesUpdate,
                torch_xla_ext::kv_cache_update::LaunchKvPagesUpdate,
                torch_xla_ext::kCommandBufferCompatible);
