// XlaGpuRopeKvPagesUpdate for CUDA.
#include <cuda_runtime.h>

#include <algorithm>
#include <optional>

#include "kernels/kv_cache_update/convert.cuh"
#include "kernels/kv_cache_update/kv_cache_update.h"
#include "kernels/kv_cache_update/slots.cuh"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::kv_cache_update {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

struct RopeArgs {
  explicit RopeArgs(const RopeKvPagesUpdateParams& params)
      : norm_epsilon(static_cast<float>(params.norm_epsilon)),
        norm_adds_one(params.norm_adds_one),
        key_scale(params.key_scale),
        value_scale(params.value_scale) {}

  const void* qkv;         // T[num_tokens, shards, heads, head_dim]
  Integers positions;      // [num_tokens]
  Integers slots;          // [num_tokens]
  const void* cos_sin;     // T[num_positions, rotary_dim]
  const void* query_norm;  // T[head_dim]; null if and only if key_norm is
  const void* key_norm;
  void* query;  // T[num_tokens, shards, query_heads, head_dim]
  void* pages;  // C[num_slots, shards, kv_heads, 2, head_dim]
  int64_t num_tokens;
  int64_t num_positions;
  int64_t num_slots;
  uint32_t shards;
  uint32_t query_heads;  // query_heads and kv_heads are per shard
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t rotary_dim;
  uint32_t lanes;  // threads per head: a power of two, at most 32
  float norm_epsilon;
  bool norm_adds_one;
  Scale key_scale;
  Scale value_scale;
};

// x * cos - y * sin and y * cos + x * sin. The scale has no effect, because T
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

// The sum over the threads of a head.
__device__ float SumOfHead(float x, uint32_t lanes) {
  const uint32_t first = threadIdx.x % 32 / lanes * lanes;
  const uint32_t mask = 0xffffffffu >> (32 - lanes) << first;
  for (uint32_t offset = lanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(mask, x, offset);
  }
  return x;
}

template <typename T, int kCount>
__device__ float SumOfSquares(const Vector<T, kCount>& x) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float value = ToFloat(x.values[i]);
    sum += value * value;
  }
  return sum;
}

// The RMS norm of x; `factor` is 1 / RMS of x's head. The scale has no effect,
// as in Rotate.
template <typename T, int kCount>
__device__ void Normalize(const Vector<T, kCount>& weight, float factor,
                          bool adds_one, const Scale& scale,
                          Vector<T, kCount>* x) {
  Vector<float, kCount> result;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    result.values[i] = ToFloat(x->values[i]) * factor;
  }
  if (!adds_one) *x = Convert<T>(result, scale);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float w = ToFloat(weight.values[i]);
    result.values[i] =
        adds_one ? result.values[i] * (1 + w) : ToFloat(x->values[i]) * w;
  }
  *x = Convert<T>(result, scale);
}

// args.lanes threads compute a head. Each takes pairs of its vectors: either
// the elements of a pair are rotated with each other, or neither vector is
// rotated.
template <typename T, typename C, int kCount>
__global__ void __launch_bounds__(kThreads)
    RopeKernel(const __grid_constant__ RopeArgs args) {
  using From = Vector<T, kCount>;
  using To = Vector<C, kCount>;
  const uint32_t heads = args.query_heads + 2 * args.kv_heads;
  const uint32_t heads_of_block = kThreads / args.lanes;
  const uint32_t lane = threadIdx.x % args.lanes * kCount;
  const uint32_t stride = args.lanes * kCount;
  const uint32_t rows_of_token = args.shards * heads;
  const int64_t rows = args.num_tokens * rows_of_token;
  for (int64_t row =
           int64_t{blockIdx.x} * heads_of_block + threadIdx.x / args.lanes;
       row < rows; row += int64_t{gridDim.x} * heads_of_block) {
    const int64_t token = row / rows_of_token;
    const uint32_t rest = static_cast<uint32_t>(row - token * rows_of_token);
    const uint32_t head = rest % heads, shard = rest / heads;
    const bool is_query = head < args.query_heads;
    const bool is_value = head >= args.query_heads + args.kv_heads;
    const T* const from = static_cast<const T*>(args.qkv) + row * args.head_dim;

    T* query = nullptr;
    C* page = nullptr;
    if (is_query) {
      query = static_cast<T*>(args.query) +
              ((token * args.shards + shard) * args.query_heads + head) *
                  args.head_dim;
    } else {
      const int64_t slot = args.slots[token];
      if (slot < 0 || slot >= args.num_slots) continue;
      const uint32_t kv_head =
          head - args.query_heads - (is_value ? args.kv_heads : 0);
      page = static_cast<C*>(args.pages) +
             (((slot * args.shards + shard) * args.kv_heads + kv_head) * 2 +
              is_value) *
                 args.head_dim;
    }

    const T* const norm =
        is_value
            ? nullptr
            : static_cast<const T*>(is_query ? args.query_norm : args.key_norm);
    float factor = 1;
    if (norm != nullptr) {
      float sum = 0;
      for (uint32_t i = lane; i < args.head_dim; i += stride) {
        sum += SumOfSquares(*reinterpret_cast<const From*>(from + i));
      }
      sum = SumOfHead(sum, args.lanes);
      factor = rsqrtf(sum / args.head_dim + args.norm_epsilon);
    }

    const uint32_t half = is_value ? 0 : args.rotary_dim / 2;
    const T* cos = nullptr;
    if (half != 0) {
      const int64_t position =
          min(max(args.positions[token], int64_t{0}), args.num_positions - 1);
      cos = static_cast<const T*>(args.cos_sin) + position * args.rotary_dim;
    }
    for (uint32_t pair = lane; pair < args.head_dim / 2; pair += stride) {
      const bool rotates = pair < half;
      const uint32_t first = rotates ? pair : pair + half;
      const uint32_t second =
          first + (rotates ? half : args.head_dim / 2 - half);
      From x = *reinterpret_cast<const From*>(from + first);
      From y = *reinterpret_cast<const From*>(from + second);
      if (norm != nullptr) {
        Normalize(*reinterpret_cast<const From*>(norm + first), factor,
                  args.norm_adds_one, args.key_scale, &x);
        Normalize(*reinterpret_cast<const From*>(norm + second), factor,
                  args.norm_adds_one, args.key_scale, &y);
      }
      if (rotates) {
        Rotate(*reinterpret_cast<const From*>(cos + pair),
               *reinterpret_cast<const From*>(cos + half + pair),
               args.key_scale, &x, &y);
      }
      if (is_query) {
        *reinterpret_cast<From*>(query + first) = x;
        *reinterpret_cast<From*>(query + second) = y;
      } else {
        const Scale& scale = is_value ? args.value_scale : args.key_scale;
        *reinterpret_cast<To*>(page + first) = Convert<C>(x, scale);
        *reinterpret_cast<To*>(page + second) = Convert<C>(y, scale);
      }
    }
  }
}

template <typename T, typename C, int kCount>
Status Launch(cudaStream_t stream, RopeArgs args) {
  const uint32_t pairs = args.head_dim / 2 / kCount;
  args.lanes = 1;
  while (args.lanes < std::min(pairs, 32u)) args.lanes *= 2;
  const int64_t count = args.num_tokens * args.shards *
                        (args.query_heads + 2 * args.kv_heads) * args.lanes;
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
                              reinterpret_cast<uintptr_t>(args.query_norm) |
                              reinterpret_cast<uintptr_t>(args.key_norm) |
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
                               std::optional<AnyBuffer> query_norm,
                               std::optional<AnyBuffer> key_norm,
                               AnyResult query, AnyResult new_kv_pages,
                               const RopeKvPagesUpdateParams& params) {
  if (qkv.size() == 0) return Status::Ok();
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckRope(qkv, cos_sin, kv_pages, query_norm, key_norm, query.dim(2)));
  RopeArgs args(params);
  args.qkv = qkv.untyped_data();
  args.positions = Integers(positions);
  args.slots = Integers(slot_mapping);
  args.cos_sin = cos_sin.untyped_data();
  args.query_norm = query_norm ? query_norm->untyped_data() : nullptr;
  args.key_norm = key_norm ? key_norm->untyped_data() : nullptr;
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
