// CombineKernel: joins the partial results of sequences that lie in several
// parts (partition.cuh), always in the same order.
#ifndef KERNELS_PAGED_ATTENTION_COMBINE_CUH_
#define KERNELS_PAGED_ATTENTION_COMBINE_CUH_

#include "kernels/paged_attention/attend.cuh"

namespace torch_xla_ext {

inline constexpr int kCombineThreads = 256;

// Grid: [num_heads, parts - 1]. A block works on the sequence, if there is one,
// that begins in its part and ends in a later one.
//
// It may have started before AttendKernel ended, so it reads what that wrote
// past the cache for constant data.
static __global__ void __launch_bounds__(kCombineThreads)
    CombineKernel(const __grid_constant__ DecodeArgs args, int head_dim) {
  __shared__ float4 sums[kCombineThreads];
  const int head = blockIdx.x, part = blockIdx.y;
  const int group = args.num_heads / args.num_kv_heads;
  const int head_block =
      head / group * args.head_blocks + head % group / args.rows;
  const int row = head % group % args.rows;
  const int64_t first_slot =
      static_cast<int64_t>(head_block) * args.parts + part;
  // The piece's row: the first piece ends its part, the others begin theirs.
  const auto piece_row = [&](int piece) {
    return ((first_slot + piece) * 2 + (piece == 0 ? 1 : 0)) * args.rows + row;
  };

  WaitForPreviousKernel();
  const int2 split =
      __ldcg(reinterpret_cast<const int2*>(args.split_sequences + first_slot));
  const int seq = split.x, pieces = split.y;
  if (seq < 0) return;

  const int lane = threadIdx.x % 32;
  float max = -INFINITY;
  for (int i = lane; i < pieces; i += 32) {
    max = fmaxf(max, __ldcg(args.partial_stats + piece_row(i)).x);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, distance));
  }
  float sum = 0;
  for (int i = lane; i < pieces; i += 32) {
    const float2 stats = __ldcg(args.partial_stats + piece_row(i));
    sum += RelativeWeight(stats.x, max) * stats.y;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, distance);
  }

  // Each thread adds up 4 dimensions of every step-th piece.
  const int vectors = head_dim / 4;
  const int step = kCombineThreads / vectors;
  const int vector = threadIdx.x % vectors, first = threadIdx.x / vectors;
  float4 total = {0, 0, 0, 0};
  if (first < step) {
#pragma unroll 4
    for (int i = first; i < pieces; i += step) {
      const int64_t at = piece_row(i);
      const float w = RelativeWeight(__ldcg(args.partial_stats + at).x, max);
      const float4 part_sum = __ldcg(reinterpret_cast<const float4*>(
          args.partial_out + at * head_dim + vector * 4));
      total.x += w * part_sum.x;
      total.y += w * part_sum.y;
      total.z += w * part_sum.z;
      total.w += w * part_sum.w;
    }
    sums[threadIdx.x] = total;
  }
  __syncthreads();
  if (first > 0) return;
  for (int i = 1; i < step; ++i) {
    const float4 other = sums[i * vectors + vector];
    total.x += other.x;
    total.y += other.y;
    total.z += other.z;
    total.w += other.w;
  }
  const float factor = sum == 0 ? 0 : args.value_scale / sum;
  Store(
      args,
      (static_cast<int64_t>(seq) * args.num_heads + head) * head_dim +
          vector * 4,
      {total.x * factor, total.y * factor, total.z * factor, total.w * factor});
}

}  // namespace torch_xla_ext

#endif  // KERNELS_PAGED_ATTENTION_COMBINE_CUH_
