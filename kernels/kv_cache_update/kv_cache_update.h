// XlaGpuKvCacheUpdate, XlaGpuKvPagesUpdate and XlaGpuRopeKvPagesUpdate: write
// the keys and values of new tokens into a paged cache, in place.
//
// Token t goes to row slot % block_size of block slot / block_size, where slot
// = slot_mapping[t]. Slots that are negative, or beyond the cache, are skipped.
// If two tokens have the same slot, each element comes from one of the two. A
// cache of F8E4M3FN receives key / key_scale, rounded to nearest even and
// saturated at ±448.
//
// In kv pages, the cache of ragged_paged_attention, the keys of kv head g are
// head 2 g, and its values head 2 g + 1.
//
// XlaGpuRopeKvPagesUpdate rotates queries and keys first. Each shard of a token
// has its query heads, its key heads and its value heads, one after another.
// With query_norm and key_norm, the weights w of an RMS norm (Zhang and
// Sennrich, 2019), each head x of queries and keys is replaced before:
//   n = x / sqrt(mean(x²) + norm_epsilon)
//   x = round(round(n) * w), or round(n * (1 + w)) if norm_adds_one
// where round is the conversion from float to T.
#ifndef KERNELS_KV_CACHE_UPDATE_KV_CACHE_UPDATE_H_
#define KERNELS_KV_CACHE_UPDATE_KV_CACHE_UPDATE_H_

#include <optional>

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

inline constexpr Signature kRopeKvPagesUpdate = ParseSignature(
    "XlaGpuRopeKvPagesUpdate(qkv: T[num_tokens, shards, heads, head_dim], "
    "positions: I[num_tokens], slot_mapping: I[num_tokens], "
    "cos_sin: T[num_positions, rotary_dim], "
    "kv_pages: C[num_pages, page_size, 2 * num_kv_heads, head_dim], "
    "query_norm?: T[head_dim], key_norm?: T[head_dim]) -> "
    "(query: T[num_tokens, shards, query_heads, head_dim], kv_pages) "
    "where T: F16 | BF16 | F32, C: T | F8E4M3FN, I: S32 | S64");

// Checks the heads and norms of XlaGpuRopeKvPagesUpdate.
inline Status CheckRope(const AnyBuffer& qkv, const AnyBuffer& cos_sin,
                        const AnyBuffer& kv_pages,
                        const std::optional<AnyBuffer>& query_norm,
                        const std::optional<AnyBuffer>& key_norm,
                        int64_t query_heads) {
  const int64_t of_shard = kv_pages.dim(2) / qkv.dim(1);
  if (kv_pages.dim(2) != qkv.dim(1) * of_shard || of_shard % 2 != 0 ||
      query_heads != qkv.dim(2) - of_shard) {
    return Status::Error("kv_pages: expected ", qkv.dim(1),
                         " shards of 2 * num_kv_heads heads, and ", qkv.dim(2),
                         " heads to be theirs and those of the query, but got ",
                         kv_pages.dim(2), " heads and ", query_heads,
                         " of the query");
  }
  if (cos_sin.dim(0) == 0 || cos_sin.dim(1) % 2 != 0 || qkv.dim(3) % 2 != 0 ||
      cos_sin.dim(1) > qkv.dim(3)) {
    return Status::Error("cos_sin: expected rows of an even number of elements",
                         ", at most those of a head, but got ", cos_sin.dim(0),
                         " rows of ", cos_sin.dim(1), " for heads of ",
                         qkv.dim(3));
  }
  if (query_norm.has_value() != key_norm.has_value()) {
    return Status::Error(
        "expected both query_norm and key_norm, or neither, but got only one");
  }
  return Status::Ok();
}

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

struct RopeKvPagesUpdateParams {
  double key_scale;  // this and the next two as above
  double value_scale;
  bool report_out_of_range;
  double norm_epsilon;
  bool norm_adds_one;  // norms multiply by 1 + weight

  static constexpr auto Fields() {
    using P = RopeKvPagesUpdateParams;
    return MakeFields(Field("key_scale", &P::key_scale),
                      Field("value_scale", &P::value_scale),
                      Field("report_out_of_range", &P::report_out_of_range),
                      Field("norm_epsilon", &P::norm_epsilon),
                      Field("norm_adds_one", &P::norm_adds_one));
  }
};

}  // namespace torch_xla_ext::kv_cache_update

#endif  // KERNELS_KV_CACHE_UPDATE_KV_CACHE_UPDATE_H_
