// XlaGpuMlaPagedAttention: multi-head latent attention of one query token per
// sequence (DeepSeek-AI, "DeepSeek-V2", 2024), in the form in which all heads
// share one latent row per token. The first 512 elements of a row are the
// value; together with 64 more, of the rotated key, they are the key.
//
// For sequence s and head h, and the rows c_0 … c_(n-1) of its cache, n =
// context_lens[s]:
//   logit_j = scale * kv_scale * <query[s, h], c_j>
//   out = sum_j exp(logit_j - lse) * kv_scale * c_j[0 … 511]
//   lse = log(sum_j exp(logit_j))
// The caller multiplies the queries by the heads' key projections before, and
// the results by their value projections after. Token j is in row j %
// block_size of block block_tables[s][j / block_size]. Without a context, the
// result is zeros and lse is -inf.
//
// Device data is not trusted: n is clamped to [0, max_blocks * block_size], and
// a token whose block number is not in [0, num_blocks) is masked.
#ifndef KERNELS_MLA_PAGED_ATTENTION_MLA_PAGED_ATTENTION_H_
#define KERNELS_MLA_PAGED_ATTENTION_MLA_PAGED_ATTENTION_H_

#include <algorithm>
#include <cstdint>

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::mla {

inline constexpr int kKeyDim = 576;    // per query, and per row of the cache
inline constexpr int kValueDim = 512;  // the first of them are the value

// lse_rows is num_seqs, or 0 if lse is not requested. WorkspaceSize, in the
// Host version, computes the workspace's size. With a smaller one, contexts are
// split into fewer parts, or not at all.
inline constexpr Signature kMlaPagedAttention = ParseSignature(
    "XlaGpuMlaPagedAttention(query: T[num_seqs, num_heads, 576], "
    "kv_cache: C[num_blocks, block_size, 576], "
    "block_tables: S32[num_seqs, max_blocks], context_lens: S32[num_seqs]) -> "
    "(out: T[num_seqs, num_heads, 512], lse: F32[lse_rows, num_heads], "
    "workspace: F32[workspace_size]) "
    "where T: F16 | BF16, C: T | F8E4M3FN, block_size: 8..256, num_heads: 1..");

struct MlaPagedAttentionParams {
  double scale;
  double kv_scale;  // 1 unless the cache is F8E4M3FN
  // Prints each block number and length that is out of range.
  bool report_out_of_range;

  static constexpr auto Fields() {
    using P = MlaPagedAttentionParams;
    return MakeFields(Field("scale", &P::scale),
                      Field("kv_scale", &P::kv_scale),
                      Field("report_out_of_range", &P::report_out_of_range));
  }
};

// The minimum number of tokens in a part of a context.
inline constexpr int64_t kMinPartTokens = 256;
// Heads that a thread block works on at once: kFewRows if there are no more
// heads, else kManyRows.
inline constexpr int kFewRows = 16, kManyRows = 64;

// The number of parts into which to split contexts on a GPU with this many
// multiprocessors. A multiprocessor has room for two blocks of kFewRows heads.
inline int64_t WantedParts(int64_t multiprocessors, int64_t num_seqs,
                           int64_t num_heads, int64_t max_tokens) {
  const int64_t blocks =
      num_heads > kFewRows ? multiprocessors : 2 * multiprocessors;
  const int64_t others = std::max<int64_t>(
      num_seqs * ((num_heads + kManyRows - 1) / kManyRows), 1);
  const int64_t most = (max_tokens + kMinPartTokens - 1) / kMinPartTokens;
  return std::max<int64_t>(std::min(blocks / others, most), 1);
}

// The number of floats that one part of every context needs: sums of values,
// and each row's maximum and sum of weights.
inline int64_t PartFloats(int64_t num_seqs, int64_t num_heads) {
  return num_seqs * num_heads * (kValueDim + 2);
}

}  // namespace torch_xla_ext::mla

#endif  // KERNELS_MLA_PAGED_ATTENTION_MLA_PAGED_ATTENTION_H_
