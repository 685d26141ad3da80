// XlaGpuPagedAttention: one query token per sequence (decode) attends to keys
// and values in blocks ("pages") of a cache.
//
// For sequence s and query head h, with kv head h / (num_heads / num_kv_heads)
// and its keys k_0 … k_(n-1), n = context_lens[s]; the query is that of the
// last of these tokens, at position n - 1:
//   logit_j = scale * key_scale * <query, k_j>
//   logit_j = soft_cap * tanh(logit_j / soft_cap)      if soft_cap > 0
//   logit_j += alibi_slopes[h] * (j - (n - 1))         if there are slopes
//   out = sum_j exp(logit_j - lse) * value_scale * v_j
//   lse = log(sum_j exp(logit_j) + exp(sinks[h]))      the sink if there are
//   any
// over all j, or over the last sliding_window of them if that is > 0. Token j
// is in row j % block_size of block block_tables[s][j / block_size]. Without a
// context, the result is zeros, and lse is the sink or -inf.
//
// Device data is not trusted: n is clamped to [0, max_blocks * block_size], and
// a token whose block number is not in [0, num_blocks) is masked.
#ifndef KERNELS_PAGED_ATTENTION_PAGED_ATTENTION_H_
#define KERNELS_PAGED_ATTENTION_PAGED_ATTENTION_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::paged_attention {

// The workspace holds the results of the parts of a long context until they are
// combined. The caller chooses its size: with less, a context is split into
// fewer parts, or not at all. On CUDA a thread block leaves two results, of
// min(num_heads / num_kv_heads, 16) heads with head_dim + 2 floats each, and
// there are at most two blocks per multiprocessor for any number of sequences:
// the results of 512 blocks, and 4 floats to align them, are enough for 256
// multiprocessors. Few sequences on GPUs with thread block clusters need no
// workspace, and neither does the Host version.
//
// lse_rows is num_seqs, or 0 if lse is not requested.
inline constexpr Signature kPagedAttention = ParseSignature(
    "XlaGpuPagedAttention(query: T[num_seqs, num_heads, head_dim], "
    "key_cache: C[num_blocks, block_size, num_kv_heads, head_dim], "
    "value_cache: C[num_blocks, block_size, num_kv_heads, head_dim], "
    "block_tables: S32[num_seqs, max_blocks], context_lens: S32[num_seqs], "
    "alibi_slopes?: F32[num_heads], sinks?: F32[num_heads]) -> "
    "(out: T[num_seqs, num_heads, head_dim], lse: F32[lse_rows, num_heads], "
    "workspace: F32[workspace_size]) "
    "where T: F16 | BF16 | F32, C: T | F8E4M3FN, head_dim: 64 | 96 | 128 | 192 "
    "| "
    "256, "
    "block_size: 8..256, num_heads: 1.., num_heads % num_kv_heads == 0");

struct PagedAttentionParams {
  double scale;
  int64_t sliding_window;  // 0: none
  double soft_cap;         // 0: none
  double key_scale;        // 1 unless the cache is F8E4M3FN
  double value_scale;
  // Prints each block number and length that is out of range.
  bool report_out_of_range;

  static constexpr auto Fields() {
    using P = PagedAttentionParams;
    return MakeFields(Field("scale", &P::scale),
                      Field("sliding_window", &P::sliding_window, 0),
                      Field("soft_cap", &P::soft_cap, 0),
                      Field("key_scale", &P::key_scale),
                      Field("value_scale", &P::value_scale),
                      Field("report_out_of_range", &P::report_out_of_range));
  }
};

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_PAGED_ATTENTION_H_
