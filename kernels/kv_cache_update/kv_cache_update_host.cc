// XlaGpuKvCacheUpdate, XlaGpuKvPagesUpdate and XlaGpuRopeKvPagesUpdate for the
// CPU.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "kernels/common/host_floats.h"
#include "kernels/kv_cache_update/kv_cache_update.h"

namespace torch_xla_ext::kv_cache_update {
namespace {

// A cache of keys, of values, or of both. A token's rows for the kv heads begin
// at `first` and are `head_stride` apart.
struct Rows {
  void* data;
  int64_t first;
  int64_t head_stride;
  int64_t token_stride;
};

int64_t Integer(AnyBuffer integers, int64_t token) {
  return integers.dtype() == S32 ? integers.data<int32_t>()[token]
                                 : integers.data<int64_t>()[token];
}

void Report(const char* target, AnyBuffer slot_mapping, int64_t num_slots) {
  for (int64_t t = 0; t < slot_mapping.dim(0); ++t) {
    const int64_t slot = Integer(slot_mapping, t);
    if (slot < num_slots) continue;
    std::fprintf(stderr,
                 "%s: slot_mapping[%lld] is %lld, which is not in [0, %lld): "
                 "skipped\n",
                 target, static_cast<long long>(t),
                 static_cast<long long>(slot),
                 static_cast<long long>(num_slots));
  }
}

void Write(AnyBuffer in, AnyBuffer slot_mapping, int64_t num_slots,
           DType cache_dtype, const Rows& rows, float scale) {
  const int64_t num_heads = in.dim(1), head_dim = in.dim(2);
  VisitFloat(in.dtype(), [&](auto t) {
    VisitFloat(cache_dtype, [&](auto c) {
      using T = decltype(t);
      using C = decltype(c);
      for (int64_t token = 0; token < in.dim(0); ++token) {
        const int64_t slot = Integer(slot_mapping, token);
        if (slot < 0 || slot >= num_slots) continue;
        for (int64_t head = 0; head < num_heads; ++head) {
          const T* from = in.data<T>() + (token * num_heads + head) * head_dim;
          C* to = static_cast<C*>(rows.data) + rows.first +
                  slot * rows.token_stride + head * rows.head_stride;
          for (int64_t d = 0; d < head_dim; ++d) {
            to[d] = FromFloat<C>(static_cast<float>(from[d]) / scale);
          }
        }
      }
    });
  });
}

Status KvCacheUpdateOnHost(AnyBuffer key, AnyBuffer value,
                           AnyBuffer slot_mapping, AnyBuffer key_cache,
                           AnyBuffer value_cache, AnyResult new_key_cache,
                           AnyResult new_value_cache,
                           const KvCacheUpdateParams& params) {
  const int64_t num_slots = key_cache.dim(0) * key_cache.dim(1);
  const int64_t num_heads = key_cache.dim(2), head_dim = key_cache.dim(3);
  if (params.report_out_of_range) {
    Report("XlaGpuKvCacheUpdate", slot_mapping, num_slots);
  }
  Write(key, slot_mapping, num_slots, key_cache.dtype(),
        {new_key_cache.untyped_data(), 0, head_dim, num_heads * head_dim},
        static_cast<float>(params.key_scale));
  Write(value, slot_mapping, num_slots, value_cache.dtype(),
        {new_value_cache.untyped_data(), 0, head_dim, num_heads * head_dim},
        static_cast<float>(params.value_scale));
  return Status::Ok();
}

Status KvPagesUpdateOnHost(AnyBuffer key, AnyBuffer value,
                           AnyBuffer slot_mapping, AnyBuffer kv_pages,
                           AnyResult new_kv_pages,
                           const KvCacheUpdateParams& params) {
  const int64_t num_slots = kv_pages.dim(0) * kv_pages.dim(1);
  const int64_t num_combined_heads = kv_pages.dim(2);
  const int64_t head_dim = kv_pages.dim(3);
  if (params.report_out_of_range) {
    Report("XlaGpuKvPagesUpdate", slot_mapping, num_slots);
  }
  const int64_t token_stride = num_combined_heads * head_dim;
  Write(key, slot_mapping, num_slots, kv_pages.dtype(),
        {new_kv_pages.untyped_data(), 0, 2 * head_dim, token_stride},
        static_cast<float>(params.key_scale));
  Write(value, slot_mapping, num_slots, kv_pages.dtype(),
        {new_kv_pages.untyped_data(), head_dim, 2 * head_dim, token_stride},
        static_cast<float>(params.value_scale));
  return Status::Ok();
}

// Replaces a head's elements by those of their RMS norm; see kv_cache_update.h.
template <typename T>
void Normalize(const T* weight, const RopeKvPagesUpdateParams& params,
               std::vector<T>* head) {
  float sum = 0;
  for (const T x : *head) sum += static_cast<float>(x) * static_cast<float>(x);
  const float factor = 1 / std::sqrt(sum / head->size() +
                                     static_cast<float>(params.norm_epsilon));
  for (size_t d = 0; d < head->size(); ++d) {
    const float x = static_cast<float>((*head)[d]) * factor;
    const float w = static_cast<float>(weight[d]);
    (*head)[d] = FromFloat<T>(params.norm_adds_one
                                  ? x * (1 + w)
                                  : static_cast<float>(FromFloat<T>(x)) * w);
  }
}

// Rotates a head's first rotary_dim elements.
template <typename T>
void Rotate(const T* cos_sin, int64_t rotary_dim, T* head) {
  const int64_t half = rotary_dim / 2;
  for (int64_t d = 0; d < half; ++d) {
    const float x = static_cast<float>(head[d]);
    const float y = static_cast<float>(head[d + half]);
    const float cos = static_cast<float>(cos_sin[d]);
    const float sin = static_cast<float>(cos_sin[d + half]);
    head[d] = FromFloat<T>(x * cos - y * sin);
    head[d + half] = FromFloat<T>(y * cos + x * sin);
  }
}

Status RopeKvPagesUpdateOnHost(AnyBuffer qkv, AnyBuffer positions,
                               AnyBuffer slot_mapping, AnyBuffer cos_sin,
                               AnyBuffer kv_pages,
                               std::optional<AnyBuffer> query_norm,
                               std::optional<AnyBuffer> key_norm,
                               AnyResult query, AnyResult new_kv_pages,
                               const RopeKvPagesUpdateParams& params) {
  if (qkv.size() == 0) return Status::Ok();
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckRope(qkv, cos_sin, kv_pages, query_norm, key_norm, query.dim(2)));
  const int64_t num_slots = kv_pages.dim(0) * kv_pages.dim(1);
  if (params.report_out_of_range) {
    Report("XlaGpuRopeKvPagesUpdate", slot_mapping, num_slots);
  }
  const int64_t shards = qkv.dim(1), heads = qkv.dim(2), head_dim = qkv.dim(3);
  const int64_t query_heads = query.dim(2);
  const int64_t kv_heads = (heads - query_heads) / 2;
  const int64_t rotary_dim = cos_sin.dim(1);
  VisitFloat(qkv.dtype(), [&](auto t) {
    VisitFloat(kv_pages.dtype(), [&](auto c) {
      using T = decltype(t);
      using C = decltype(c);
      std::vector<T> rotated;
      for (int64_t row = 0; row < qkv.dim(0) * shards * heads; ++row) {
        const int64_t token = row / heads / shards,
                      shard = row / heads % shards;
        const int64_t head = row % heads;
        const bool is_query = head < query_heads;
        const bool is_value = head >= query_heads + kv_heads;
        const int64_t position =
            std::min(std::max(Integer(positions, token), int64_t{0}),
                     cos_sin.dim(0) - 1);
        const T* const from = qkv.data<T>() + row * head_dim;
        rotated.assign(from, from + head_dim);
        if (!is_value) {
          if (query_norm) {
            Normalize((is_query ? query_norm : key_norm)->data<T>(), params,
                      &rotated);
          }
          Rotate(cos_sin.data<T>() + position * rotary_dim, rotary_dim,
                 rotated.data());
        }
        if (is_query) {
          std::copy(
              rotated.begin(), rotated.end(),
              query.data<T>() +
                  ((token * shards + shard) * query_heads + head) * head_dim);
          continue;
        }
        const int64_t slot = Integer(slot_mapping, token);
        if (slot < 0 || slot >= num_slots) continue;
        const int64_t kv_head = head - query_heads - (is_value ? kv_heads : 0);
        C* const to =
            new_kv_pages.data<C>() +
            (((slot * shards + shard) * kv_heads + kv_head) * 2 + is_value) *
                head_dim;
        const float scale = static_cast<float>(is_value ? params.value_scale
                                                        : params.key_scale);
        for (int64_t d = 0; d < head_dim; ++d) {
          to[d] = FromFloat<C>(static_cast<float>(rotated[d]) / scale);
        }
      }
    });
  });
  return Status::Ok();
}

}  // namespace
}  // namespace torch_xla_ext::kv_cache_update

XLA_KERNEL_HOST(XlaGpuKvCacheUpdate,
                torch_xla_ext::kv_cache_update::kKvCacheUpdate,
                torch_xla_ext::kv_cache_update::KvCacheUpdateOnHost);
XLA_KERNEL_HOST(XlaGpuKvPagesUpdate,
                torch_xla_ext::kv_cache_update::kKvPagesUpdate,
                torch_xla_ext::kv_cache_update::KvPagesUpdateOnHost);
XLA_KERNEL_HOST(XlaGpuRopeKvPagesUpdate,
                torch_xla_ext::kv_cache_update::kRopeKvPagesUpdate,
                torch_xla_ext::kv_cache_update::RopeKvPagesUpdateOnHost);
