// XlaGpuRaggedPagedAttention: causal attention of the new tokens of several
// sequences, one (decode) or many (prefill) for each, to a paged cache. The
// arguments are those of torch_xla's TPU kernel, torch.ops.xla.
// ragged_paged_attention.
//
// Sequence s < num_seqs[0] has the query rows cu_q_lens[s] … cu_q_lens[s+1] -
// 1, which are the last q_len of its kv_len = kv_lens[s] tokens. In a page, the
// keys of kv head g are head 2 g, and its values head 2 g + 1. The query of
// head h at position p attends with kv head g = h / (num_q_heads /
// num_kv_heads) to the tokens j <= p, and j > p - sliding_window if that is >
// 0:
//   logit_j = sm_scale * k_scale * <q, k_j>
//   logit_j = soft_cap * tanh(logit_j / soft_cap)      if soft_cap > 0
//   out = sum_j exp(logit_j - lse) * v_scale * v_j
//   lse = log(sum_j exp(logit_j) + exp(sinks[h]))      the sink if there are
//   any
// Rows of q that see no token, such as those that belong to no sequence, give
// zeros, and their lse is the sink or -inf.
//
// If not `causal`, all query rows of a sequence see all of its tokens. There is
// no sliding window then, and there may be more rows than tokens.
//
// With a custom_mask, as for the draft trees of speculative decoding, row i
// does not see those of its sequence's new tokens (the last q_len) whose bits
// are 0: new token j has bit j % 32 of custom_mask[i][j / 32]. Tokens without
// bits are visible as without a mask.
//
// With max_q_len, the results of sequences with more query rows are undefined.
//
// Device data is not trusted: num_seqs and kv_lens are clamped to [0,
// max_num_seqs] and [0, pages_per_seq * page_size], query rows to those of q
// and to at most kv_len for each sequence (the last ones; others give zeros),
// and a token whose page number is not in [0, total_num_pages) is masked. If
// cu_q_lens decreases, which it must not, the rows of `out` are undefined. Even
// then, only the operands are read, and only the results are written. Tokens
// that no query of a sequence sees, before its window or after its last token,
// may hold anything.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_RAGGED_PAGED_ATTENTION_H_
#define KERNELS_RAGGED_PAGED_ATTENTION_RAGGED_PAGED_ATTENTION_H_

#include "torch_xla_ext/kernel.h"

namespace torch_xla_ext::ragged {

// The caller chooses the size of the workspace: with less, contexts are split
// into fewer parts, or not at all. WorkspaceSize, in the Host version, computes
// a useful size.
//
// lse_rows is max_num_batched_tokens, or 0 if lse is not requested.
inline constexpr Signature kRaggedPagedAttention = ParseSignature(
    "XlaGpuRaggedPagedAttention("
    "q: T[max_num_batched_tokens, num_q_heads, head_dim], "
    "kv_pages: C[total_num_pages, page_size, 2 * num_kv_heads, head_dim], "
    "kv_lens: S32[max_num_seqs], page_indices: S32[max_num_seqs, "
    "pages_per_seq], cu_q_lens: S32[max_num_seqs + 1], num_seqs: S32[1], "
    "sinks?: F32[num_q_heads], "
    "custom_mask?: S32[max_num_batched_tokens, mask_words]) -> "
    "(out: T[max_num_batched_tokens, num_q_heads, head_dim], "
    "lse: F32[lse_rows, num_q_heads], workspace: F32[workspace_size]) "
    "where T: F16 | BF16 | F32, C: T | F8E4M3FN, head_dim: 64 | 96 | 128 | 192 "
    "| "
    "256, "
    "page_size: 8..256, num_q_heads: 1.., mask_words: 1..64, "
    "num_q_heads % num_kv_heads == 0");

struct RaggedPagedAttentionParams {
  double sm_scale;
  int64_t sliding_window;  // 0: none
  double soft_cap;         // 0: none
  double k_scale;          // 1 unless the pages are F8E4M3FN
  double v_scale;
  bool causal;
  // Prints each page number and length that is out of range.
  bool report_out_of_range;
  // Promises that all elements of q, in BF16, are values of F8E4M3FN. Products
  // of q with F8E4M3FN pages may then be computed in F8E4M3FN.
  bool q_is_float8;
  // Promises that no sequence has more query rows. 0: no limit.
  int64_t max_q_len;

  static constexpr auto Fields() {
    using P = RaggedPagedAttentionParams;
    return MakeFields(
        Field("sm_scale", &P::sm_scale),
        Field("sliding_window", &P::sliding_window, 0),
        Field("soft_cap", &P::soft_cap, 0), Field("k_scale", &P::k_scale),
        Field("v_scale", &P::v_scale), Field("causal", &P::causal),
        Field("report_out_of_range", &P::report_out_of_range),
        Field("q_is_float8", &P::q_is_float8),
        Field("max_q_len", &P::max_q_len, 0));
  }
};

// Checks of the parameters that the signature cannot express.
inline Status CheckParams(const RaggedPagedAttentionParams& params) {
  if (params.causal || params.sliding_window == 0) return Status::Ok();
  return Status::Error(
      "sliding_window: expected 0, since causal is false, but got ",
      params.sliding_window);
}

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_RAGGED_PAGED_ATTENTION_H_
