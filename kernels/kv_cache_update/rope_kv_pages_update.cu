// XlaGpuRopeKvPagesUpdate for CUDA.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/kv_cache_update/convert.cuh"
#include "kernels/kv_cache_update/kv_cache_update.h"
#include "kernels/kv_cache_update/slots.cuh"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::kv_cache_update {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

struct RopeArgs {
  explicit RopeArgs(const KvCacheUpdateParams& params)
      : key_scale(params.key_scale), value_scale(params.value_scale) {}

  const void* qkv;      // T[num_tokens, shards, heads, head_dim]
  Integers positions;   // [num_tokens]
  Integers slots;       // [num_tokens]
  const void* cos_sin;  // T[num_positions, rotary_dim]
  void* query;          // T[num_tokens, shards, query_heads, head_dim]
  void* pages;          // C[num_slots, shards, kv_heads, 2, head_dim]
  int64_t num_tokens;
  int64_t num_positions;
  int64_t num_slots;
  uint32_t shards;
  uint32_t query_heads;  // of a shard, as kv_heads
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t rotary_dim;
  Scale key_scale;
  Scale value_scale;
};

// x * cos - y * sin and y * cos + x * sin. The scale is of no effect, since T
// is not F8E4M3FN.
template <typename T, int kCount>
__device__ void Rotate(const Vector<T, kCount>& cos,
                       const Vector<T, kCount>& sin, const Scale& scale,
                       Vector<T, kCount>* x, Vector<T, kCount>* y) {
  Vector<float, kCount> first, second;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float a = ToFloat(x->values[i]), b = ToFloat(y->values[i]);
    const float c = ToFloat(cos.values[i]), s = ToFloat(sin.values[i]);
    first.values[i] = a * c - b * s;
    second.values[i] = b * c + a * s;
  }
  *x = Convert<T>(first, scale);
  *y = Convert<T>(second, scale);
}

// The unit of work are two vectors of a head, whose elements are rotated with
// each other, or neither.
template <typename T, typename C, int kCount>
__global__ void __launch_bounds__(kThreads)
    RopeKernel(const __grid_constant__ RopeArgs args) {
  using From = Vector<T, kCount>;
  using To = Vector<C, kCount>;
  const uint32_t heads = args.query_heads + 2 * args.kv_heads;
  const uint32_t pairs = args.head_dim / 2 / kCount;
  const int64_t token_units = int64_t{args.shards} * heads * pairs;
  const int64_t count = args.num_tokens * token_units;
  for (int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
       index < count; index += int64_t{gridDim.x} * kThreads) {
    const int64_t token = index / token_units;
    const uint32_t unit = static_cast<uint32_t>(index - token * token_units);
    const uint32_t pair = unit % pairs * kCount;
    const uint32_t head = unit / pairs % heads, shard = unit / pairs / heads;
    const bool is_query = head < args.query_heads;
    const bool is_value = head >= args.query_heads + args.kv_heads;

    const uint32_t rotary_dim = is_value ? 0 : args.rotary_dim;
    const uint32_t half = rotary_dim / 2;
    const bool rotates = pair < half;
    const uint32_t first = rotates ? pair : pair + half;
    const uint32_t second = first + (rotates ? half : args.head_dim / 2 - half);
    const int64_t row = (token * args.shards + shard) * heads + head;
    const T* const from = static_cast<const T*>(args.qkv) + row * args.head_dim;
    From x = *reinterpret_cast<const From*>(from + first);
    From y = *reinterpret_cast<const From*>(from + second);
    if (rotates) {
      const int64_t position =
          min(max(args.positions[token], int64_t{0}), args.num_positions - 1);
      const T* const cos =
          static_cast<const T*>(args.cos_sin) + position * rotary_dim + pair;
      Rotate(*reinterpret_cast<const From*>(cos),
             *reinterpret_cast<const From*>(cos + half), args.key_scale, &x,
             &y);
    }
    if (is_query) {
      T* const to = static_cast<T*>(args.query) +
                    ((token * args.shards + shard) * args.query_heads + head) *
                        args.head_dim;
      *reinterpret_cast<From*>(to + first) = x;
      *reinterpret_cast<From*>(to + second) = y;
      continue;
    }
    const int64_t slot = args.slots[token];
    if (slot < 0 || slot >= args.num_slots) continue;
    const uint32_t kv_head =
        head - args.query_heads - (is_value ? args.kv_heads : 0);
    const int64_t kv_row =
        ((slot * args.shards + shard) * args.kv_heads + kv_head) * 2 + is_value;
    C* const to = static_cast<C*>(args.pages) + kv_row * args.head_dim;
    const Scale& scale = is_value ? args.value_scale : args.key_scale;
    *reinterpret_cast<To*>(to + first) = Convert<C>(x, scale);
    *reinterpret_cast<To*>(to + second) = Convert<C>(y, scale);
  }
}

template <typename T, typename C, int kCount>
Status Launch(cudaStream_t stream, const RopeArgs& args) {
  const int64_t count = args.num_tokens * args.shards *
                        (args.query_heads + 2 * args.kv_heads) *
                        (args.head_dim / 2 / kCount);
  const int64_t blocks =
      std::min((count + kThreads - 1) / kThreads, kMaxBlocks);
  RopeKernel<T, C, kCount>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError());
}

template <typename T, typename C>
Status LaunchVectors(cudaStream_t stream, const RopeArgs& args) {
  constexpr int kCount = 16 / sizeof(T);
  // XLA aligns its allocations, but may pass a kernel a slice of one.
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(args.qkv) |
                              reinterpret_cast<uintptr_t>(args.cos_sin) |
                              reinterpret_cast<uintptr_t>(args.query) |
                              reinterpret_cast<uintptr_t>(args.pages);
  if (args.head_dim / 2 % kCount == 0 && args.rotary_dim / 2 % kCount == 0 &&
      addresses % 16 == 0) {
    return Launch<T, C, kCount>(stream, args);
  }
  return Launch<T, C, 1>(stream, args);
}

template <typename T>
Status LaunchType(cudaStream_t stream, DType cache, const RopeArgs& args) {
  return cache == F8E4M3FN ? LaunchVectors<T, __nv_fp8_e4m3>(stream, args)
                           : LaunchVectors<T, T>(stream, args);
}

Status LaunchRopeKvPagesUpdate(cudaStream_t stream, AnyBuffer qkv,
                               AnyBuffer positions, AnyBuffer slot_mapping,
                               AnyBuffer cos_sin, AnyBuffer kv_pages,
                               AnyResult query, AnyResult new_kv_pages,
                               const KvCacheUpdateParams& params) {
  if (qkv.size() == 0) return Status::Ok();
  XLA_KERNEL_RETURN_IF_ERROR(CheckRope(qkv, cos_sin, kv_pages, query.dim(2)));
  RopeArgs args(params);
  args.qkv = qkv.untyped_data();
  args.positions = Integers(positions);
  args.slots = Integers(slot_mapping);
  args.cos_sin = cos_sin.untyped_data();
  args.query = query.untyped_data();
  args.pages = new_kv_pages.untyped_data();
  args.num_tokens = qkv.dim(0);
  args.num_positions = cos_sin.dim(0);
  args.num_slots = kv_pages.dim(0) * kv_pages.dim(1);
  args.shards = static_cast<uint32_t>(qkv.dim(1));
  args.query_heads = static_cast<uint32_t>(query.dim(2));
  args.kv_heads = static_cast<uint32_t>((qkv.dim(2) - query.dim(2)) / 2);
  args.head_dim = static_cast<uint32_t>(qkv.dim(3));
  args.rotary_dim = static_cast<uint32_t>(cos_sin.dim(1));
  if (params.report_out_of_range) {
    XLA_KERNEL_RETURN_IF_ERROR(ReportOutOfRange(
        stream, Target::kRope, args.slots, args.num_tokens, args.num_slots));
  }
  switch (qkv.dtype()) {
    case F16:
      return LaunchType<__half>(stream, kv_pages.dtype(), args);
    case BF16:
      return LaunchType<__nv_bfloat16>(stream, kv_pages.dtype(), args);
    default:  // F32
      return LaunchType<float>(stream, kv_pages.dtype(), args);
  }
}

}  // namespace
}  // namespace torch_xla_ext::kv_cache_update

XLA_KERNEL_CUDA(XlaGpuRopeKvPagesUpdate,
                torch_xla_ext::kv_cache_update::kRopeKvPagesUpdate,
                torch_xla_ext::kv_cache_update::LaunchRopeKvPagesUpdate,
                torch_xla_ext::kCommandBufferCompatible);
