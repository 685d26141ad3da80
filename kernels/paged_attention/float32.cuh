// The kernels of float32.h, a part of paged_attention.cu: as a separate file,
// nvcc would take ten seconds to read its headers for all architectures.
//
// A thread block computes one row's attention for up to four heads that share a
// kv head. Its warps take turns with the tokens; each has its own maximum, sum
// of weights and weighted sum of values, which are combined in the end.
#ifndef KERNELS_PAGED_ATTENTION_FLOAT32_CUH_
#define KERNELS_PAGED_ATTENTION_FLOAT32_CUH_

#include <cuda_fp8.h>

#include <climits>
#include <cmath>

#include "kernels/paged_attention/float32.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::paged_attention {
namespace float32 {

inline constexpr int kHeads = 4;
inline constexpr int kWarps = 8;

// The sequence and token of a query row. A row of no sequence sees no tokens.
struct Row {
  int sequence;
  int first;      // the row sees only tokens in [first, end)
  int end;        // one past its own token
  int position;   // of its own token; ALiBi counts from there
  int first_new;  // the sequence's first new token, bit 0 of custom_mask
};

__device__ inline int Clamp(int64_t value, int high) {
  return static_cast<int>(value < 0 ? 0 : value > high ? high : value);
}

__device__ inline Row FindRow(const Float32Args& args, int row) {
  const int max_tokens =
      Clamp(int64_t{args.max_blocks} * args.block_size, INT_MAX - 64);
  int sequence = row, context, position, first_new = 0;
  if (args.cu_q_lens == nullptr) {
    context = Clamp(args.context_lens[row], max_tokens);
    position = context - 1;
  } else {
    // Find the last sequence that does not begin after the row.
    const int count = Clamp(*args.num_seqs, args.max_num_seqs);
    const auto begin_of = [&](int s) {
      return Clamp(args.cu_q_lens[s], args.num_rows);
    };
    int low = 0, high = count;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (begin_of(middle) <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (low == 0) return {0, 0, 0, 0, 0};
    sequence = low - 1;
    const int begin = begin_of(sequence);
    const int end = max(begin_of(sequence + 1), begin);
    if (row >= end) return {0, 0, 0, 0, 0};
    context = Clamp(args.context_lens[sequence], max_tokens);
    position = args.causal ? context - (end - row) : context - 1;
    first_new = context - (end - begin);
  }
  const int first = Clamp(int64_t{position} - args.sliding_window + 1, INT_MAX);
  return {sequence, first, position + 1, position, first_new};
}

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_fp8_e4m3 value) {
  return static_cast<float>(value);
}

// Whether custom_mask makes a token visible to a row.
__device__ inline bool IsShown(const Float32Args& args, int row,
                               int new_token) {
  if (args.custom_mask == nullptr || new_token < 0 ||
      new_token >= args.mask_words * 32) {
    return true;
  }
  const int32_t* mask = args.custom_mask + int64_t{row} * args.mask_words;
  return mask[new_token / 32] >> new_token % 32 & 1;
}

template <typename C, int kPerLane>
__global__ void Float32Kernel(const Float32Args args) {
  constexpr int kHeadDim = 32 * kPerLane;
  __shared__ float maxima[kHeads][kWarps];
  __shared__ float sums[kHeads][kWarps];
  __shared__ float values[kHeads][kWarps][kHeadDim];

  const int group = args.num_heads / args.num_kv_heads;
  const int chunks = (group + kHeads - 1) / kHeads;
  const int chunk = blockIdx.x % chunks;
  const int kv_head = blockIdx.x / chunks % args.num_kv_heads;
  const int row_index = blockIdx.x / chunks / args.num_kv_heads;
  const int first_head = kv_head * group + chunk * kHeads;
  const int num_heads = min(kHeads, group - chunk * kHeads);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t first_row = int64_t{row_index} * args.num_heads + first_head;

  const Row row = FindRow(args, row_index);
  float query[kHeads][kPerLane], out[kHeads][kPerLane] = {};
  float max[kHeads], sum[kHeads] = {}, slope[kHeads] = {};
  for (int h = 0; h < kHeads; ++h) {
    max[h] = -INFINITY;
    // Threads for heads past the last one repeat the last one, and write
    // nothing.
    const int head = min(h, num_heads - 1);
    if (args.alibi_slopes != nullptr) {
      slope[h] = args.alibi_slopes[first_head + head];
    }
    for (int i = 0; i < kPerLane; ++i) {
      query[h][i] = args.query[(first_row + head) * kHeadDim + i * 32 + lane];
    }
  }

  const int32_t* table =
      args.block_tables + int64_t{row.sequence} * args.max_blocks;
  const int64_t token_stride =
      int64_t{args.num_kv_heads} * args.head_step * kHeadDim;
  for (int token = row.first + warp; token < row.end; token += kWarps) {
    const int block = table[token / args.block_size];
    if (block < 0 || block >= args.num_blocks ||
        !IsShown(args, row_index, token - row.first_new)) {
      continue;
    }
    const int64_t offset =
        (int64_t{block} * args.block_size + token % args.block_size) *
            token_stride +
        int64_t{kv_head} * args.head_step * kHeadDim + lane;
    const C* key = static_cast<const C*>(args.key_cache) + offset;
    const C* value = static_cast<const C*>(args.value_cache) + offset;
    float k[kPerLane], v[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      k[i] = ToFloat(key[i * 32]);
      v[i] = ToFloat(value[i * 32]);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float logit = 0;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) logit += query[h][i] * k[i];
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        logit += __shfl_xor_sync(~0u, logit, lanes);
      }
      logit *= args.logit_scale;
      if (args.soft_cap > 0) {
        logit = args.soft_cap * tanhf(logit / args.soft_cap);
      }
      logit += slope[h] * static_cast<float>(token - row.position);
      const float new_max = fmaxf(max[h], logit);
      const float factor = expf(max[h] - new_max);
      const float weight = expf(logit - new_max);
      max[h] = new_max;
      sum[h] = sum[h] * factor + weight;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        out[h][i] = out[h][i] * factor + weight * v[i];
      }
    }
  }

#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (lane == 0) {
      maxima[h][warp] = max[h];
      sums[h][warp] = sum[h];
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      values[h][warp][i * 32 + lane] = out[h][i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_heads * kHeadDim; i += blockDim.x) {
    const int h = i / kHeadDim, dim = i % kHeadDim;
    const float sink =
        args.sinks == nullptr ? -INFINITY : args.sinks[first_head + h];
    float total_max = sink;
    for (int w = 0; w < kWarps; ++w) {
      total_max = fmaxf(total_max, maxima[h][w]);
    }
    // A part without tokens, or a missing sink, has weight 0.
    const auto weight_of = [total_max](float logit) {
      return logit == -INFINITY ? 0.0f : expf(logit - total_max);
    };
    float total = weight_of(sink), attended = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float weight = weight_of(maxima[h][w]);
      total += weight * sums[h][w];
      attended += weight * values[h][w][dim];
    }
    args.out[(first_row + h) * kHeadDim + dim] =
        total == 0 ? 0 : args.value_scale * attended / total;
    if (dim == 0 && args.lse != nullptr) {
      args.lse[first_row + h] =
          total == 0 ? -INFINITY : total_max + logf(total);
    }
  }
}

template <typename C>
Status LaunchForCache(cudaStream_t stream, const Float32Args& args) {
  const int group = args.num_heads / args.num_kv_heads;
  const int64_t blocks = int64_t{args.num_rows} * args.num_kv_heads *
                         ((group + kHeads - 1) / kHeads);
  if (blocks > INT_MAX) {
    return Status::Error(
        "expected query rows * num_heads of float32 to be less than 2^31 but "
        "got ",
        int64_t{args.num_rows} * args.num_heads);
  }
  const auto launch = [&](auto* kernel) {
    kernel<<<static_cast<unsigned>(blocks), 32 * kWarps, 0, stream>>>(args);
    return CudaStatus(cudaGetLastError());
  };
  switch (args.head_dim) {
    case 64:
      return launch(Float32Kernel<C, 2>);
    case 96:
      return launch(Float32Kernel<C, 3>);
    case 128:
      return launch(Float32Kernel<C, 4>);
    case 192:
      return launch(Float32Kernel<C, 6>);
    default:
      return launch(Float32Kernel<C, 8>);
  }
}

}  // namespace float32

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_FLOAT32_CUH_
