// XlaGpuKvCacheUpdate and XlaGpuKvPagesUpdate for the CPU.
#include <cstdio>

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

int64_t Slot(AnyBuffer slot_mapping, int64_t token) {
  return slot_mapping.dtype() == S32 ? slot_mapping.data<int32_t>()[token]
                                     : slot_mapping.data<int64_t>()[token];
}

void Report(const char* target, AnyBuffer slot_mapping, int64_t num_slots) {
  for (int64_t t = 0; t < slot_mapping.dim(0); ++t) {
    const int64_t slot = Slot(slot_mapping, t);
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
        const int64_t slot = Slot(slot_mapping, token);
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

}  // namespace
}  // namespace torch_xla_ext::kv_cache_update

XLA_KERNEL_HOST(XlaGpuKvCacheUpdate,
                torch_xla_ext::kv_cache_update::kKvCacheUpdate,
                torch_xla_ext::kv_cache_update::KvCacheUpdateOnHost);
XLA_KERNEL_HOST(XlaGpuKvPagesUpdate,
                torch_xla_ext::kv_cache_update::kKvPagesUpdate,
                torch_xla_ext::kv_cache_update::KvPagesUpdateOnHost);
