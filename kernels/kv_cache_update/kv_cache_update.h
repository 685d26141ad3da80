// XlaGpuKvCacheUpdate and XlaGpuKvPagesUpdate: write the keys and values of new
// tokens into a paged cache, in place.
//
// Token t goes to row slot % block_size of block slot / block_size, where slot
// = slot_mapping[t]. Slots that are negative, or beyond the cache, are skipped.
// If two tokens have the same slot, each element comes from one of the two. A
// cache of F8E4M3FN gets key / key_scale, rounded to nearest even and saturated
// at ±448.
//
// In kv pages, the cache of ragged_paged_attention, the keys of kv head g are
// head 2 g, and its values head 2 g + 1.
#ifndef KERNELS_KV_CACHE_UPDATE_KV_CACHE_UPDATE_H_
#define KERNELS_KV_CACHE_UPDATE_KV_CACHE_UPDATE_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::kv_cache_update {

inline constexpr Signature kKvCacheUpdate = ParseSignature(
    "XlaGpuKvCacheUpdate(key: T[num_tokens, num_kv_heads, head_dim], "
    "value: T[num_tokens, num_kv_heads, head_dim], "
    "slot_mapping: I[num_tokens], "
    "key_cache: C[num_blocks, block_size, num_kv_heads, head_dim], "
    "value_cache: C[num_blocks, block_size, num_kv_heads, head_dim]) -> "
    "(key_cache, value_cache) "
    "where T: F16 | BF16 | F32, C: T | F8E4M3FN, I: S32 | S64");

inline constexpr Signature kKvPagesUpdate = ParseSignature(
    "XlaGpuKvPagesUpdate(key: T[num_tokens, num_kv_heads, head_dim], "
    "value: T[num_tokens, num_kv_heads, head_dim], "
    "slot_mapping: I[num_tokens], "
    "kv_pages: C[num_pages, page_size, 2 * num_kv_heads, head_dim]) -> "
    "(kv_pages) "
    "where T: F16 | BF16 | F32, C: T | F8E4M3FN, I: S32 | S64");

struct KvCacheUpdateParams {
  double key_scale;  // 1 unless the cache is F8E4M3FN
  double value_scale;
  // Prints each slot beyond the cache.
  bool report_out_of_range;

  static constexpr auto Fields() {
    using P = KvCacheUpdateParams;
    return MakeFields(Field("key_scale", &P::key_scale),
                      Field("value_scale", &P::value_scale),
                      Field("report_out_of_range", &P::report_out_of_range));
  }
};

}  // namespace torch_xla_ext::kv_cache_update

#endif  // KERNELS_KV_CACHE_UPDATE_KV_CACHE_UPDATE_H_
