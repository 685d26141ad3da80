// Attention of float32 queries to a paged cache, for XlaGpuPagedAttention and
// XlaGpuRaggedPagedAttention. Products and sums are computed in float32 without
// tensor cores: for exact numbers, not for speed.
#ifndef KERNELS_PAGED_ATTENTION_FLOAT32_H_
#define KERNELS_PAGED_ATTENTION_FLOAT32_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "torch_xla_ext/dtype.h"
#include "torch_xla_ext/status.h"

namespace torch_xla_ext::paged_attention {

struct Float32Args {
  const float* query;  // [num_rows, num_heads, head_dim]
  // C[num_blocks, block_size, num_kv_heads * head_step, head_dim], starting at
  // the first kv head; kv heads are head_step apart.
  const void* key_cache;
  const void* value_cache;      // the same
  const int32_t* block_tables;  // [max_num_seqs, max_blocks]
  const int32_t* context_lens;  // [max_num_seqs]
  // For a ragged batch: each sequence's rows, and the number of sequences. Else
  // null: row s is the query of the last token of sequence s.
  const int32_t* cu_q_lens;  // [max_num_seqs + 1]
  const int32_t* num_seqs;
  const int32_t* custom_mask;  // [num_rows, mask_words] or null
  const float* alibi_slopes;   // [num_heads] or null
  const float* sinks;          // the same
  float* out;                  // [num_rows, num_heads, head_dim]
  float* lse;                  // [num_rows, num_heads] or null

  int num_rows;
  int num_heads;
  int num_kv_heads;
  int head_step;
  int head_dim;
  int max_num_seqs;
  int max_blocks;
  int block_size;
  int num_blocks;
  int mask_words;
  int sliding_window;  // INT_MAX: none
  bool causal;
  float logit_scale;
  float soft_cap;  // 0: none
  float value_scale;
};

// `cache_dtype` is F32 or F8E4M3FN, and head_dim is one that the signatures
// allow.
Status LaunchFloat32(cudaStream_t stream, DType cache_dtype,
                     const Float32Args& args);

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_FLOAT32_H_
