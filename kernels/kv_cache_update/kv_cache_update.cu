// XlaGpuKvCacheUpdate and XlaGpuKvPagesUpdate for CUDA.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/kv_cache_update/convert.cuh"
#include "kernels/kv_cache_update/kv_cache_update.h"
#include "kernels/kv_cache_update/slots.cuh"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::kv_cache_update {
namespace {

constexpr int kThreads = 256;
// Calls with at least this many vectors fill the GPU, however many a thread
// takes.
constexpr int64_t kManyVectors = 1 << 18;
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

struct UpdateArgs {
  explicit UpdateArgs(const KvCacheUpdateParams& params)
      : key_scale(params.key_scale), value_scale(params.value_scale) {}

  const void* key;    // T[num_tokens, num_kv_heads, head_dim]
  const void* value;  // the same
  Integers slots;     // [num_tokens]
  // Slot 0, kv head 0 of each cache.
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
      // 32-bit division is much cheaper than 64-bit division, which only the
      // few large calls need.
      int64_t token;
      uint32_t vector;
      if (count <= UINT32_MAX) {
        token = static_cast<uint32_t>(index) / token_vectors;
        vector = static_cast<uint32_t>(index) % token_vectors;
      } else {
        token = index / token_vectors;
        vector = static_cast<uint32_t>(index % token_vectors);
      }
      const int64_t slot = args.slots[token];
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
  args.slots = Integers(slot_mapping);
  args.num_tokens = key.dim(0);
  args.num_kv_heads = static_cast<uint32_t>(key.dim(1));
  args.head_dim = static_cast<uint32_t>(key.dim(2));
  if (params.report_out_of_range) {
    XLA_KERNEL_RETURN_IF_ERROR(
        ReportOutOfRange(stream, pages ? Target::kPages : Target::kCache,
                         args.slots, args.num_tokens, args.num_slots));
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
