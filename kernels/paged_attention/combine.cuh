// CombineKernel: combines the partial results of sequences that span several
// parts (partition.cuh), always in the same order.
#ifndef KERNELS_PAGED_ATTENTION_COMBINE_CUH_
#define KERNELS_PAGED_ATTENTION_COMBINE_CUH_

#include <algorithm>

#include "kernels/common/softmax.cuh"
#include "kernels/paged_attention/attend.cuh"

namespace torch_xla_ext::paged_attention {

inline constexpr int kCombineThreads = 128;

// The maximum number of sequences that span several parts: at most all
// sequences, and at most one that begins in each part but the last.
inline int Candidates(const DecodeArgs& args) {
  return std::min(args.num_seqs, args.parts - 1);
}

// A sequence and the parts that it spans.
struct SplitSequence {
  int seq;
  int first_part;
  int pieces;  // nothing to combine unless greater than 1
};

template <int kUnit, typename Args>
__device__ inline SplitSequence FindCandidate(const Args& args, int index,
                                              int candidates) {
  if (candidates == args.parts - 1) {
    const Part part = FindPart<kUnit>(args, index);
    const Place& seq = part.next;
    if (!part.split || part.begin >= part.end || seq.begin >= part.end ||
        seq.begin < part.begin) {
      return {0, 0, 0};
    }
    const int last = Divide(args, part.total).PartOf(seq.end - 1);
    return {seq.seq, index, last - index + 1};
  }
  if (Refuses(args, 0, args.num_seqs)) return {0, 0, 0};
  // Each thread reads all lengths, because there are few sequences.
  int total = 0, begin = 0, end = 0;
  bool is_long = false;
  for (int seq = 0; seq < args.num_seqs; ++seq) {
    const int count = UnitsOf<kUnit>(args, seq).Count();
    if (seq == index) begin = total;
    total += count;
    if (seq == index) end = total;
    is_long |= count > kMostWhole / kUnit;
  }
  if (begin == end || !Splits(args, is_long)) return {0, 0, 0};
  const Division division = Divide(args, total);
  const int first = division.PartOf(begin);
  return {index, first, division.PartOf(end - 1) - first + 1};
}

// Grid: [head blocks of all kv heads * args.rows / rows, Candidates(args)]; a
// block has `rows` heads of a head block.
//
// It may start before AttendKernel ends, and finds its sequence meanwhile. It
// reads AttendKernel's results without the cache for constant data.
template <int kUnit, typename Args>
__global__ void __launch_bounds__(kCombineThreads)
    CombineKernel(const __grid_constant__ Args args, int head_dim, int rows) {
  __shared__ float4 values[kCombineThreads];
  __shared__ float2 stats[kCombineThreads];
  const int blocks = args.rows / rows;  // per head block
  const int head_block = blockIdx.x / blocks;
  const int first_row = blockIdx.x % blocks * rows;
  const SplitSequence split = FindCandidate<kUnit>(args, blockIdx.y, gridDim.y);
  // All blocks wait: the end of this kernel must imply the end of AttendKernel.
  WaitForPreviousKernel();
  if (split.pieces <= 1) return;
  const int64_t first_slot =
      static_cast<int64_t>(head_block) * args.parts + split.first_part;
  // Computed twice, so that these values do not occupy registers meanwhile.
  const auto all_rows = [&] {
    return RowsOf(args, HeadBlockOf(args, head_block), split.seq);
  };
  const int end_row = min(first_row + rows, all_rows().count);

  // Each thread handles 4 dimensions of a head, for every step-th piece.
  const int vectors = head_dim / 4;
  const int columns = min(rows * vectors, kCombineThreads);
  const int step = kCombineThreads / columns;
  const int column = threadIdx.x % columns, first = threadIdx.x / columns;
  for (int begin = 0; begin < rows * vectors; begin += columns) {
    const int row = first_row + (begin + column) / vectors;
    const int dim = (begin + column) % vectors * 4;
    const bool there = row < end_row && first < step;
    PartialSum total;
    if (there) {
#pragma unroll 8
      for (int i = first; i < split.pieces; i += step) {
        // The sequence's first piece is the last of its part; the other pieces
        // are the first of theirs.
        const int64_t slot = (first_slot + i) * 2 + (i == 0 ? 1 : 0);
        const int64_t at = slot * args.rows + row;
        total.Add(__ldcg(args.partial_stats + at),
                  __ldcg(reinterpret_cast<const float4*>(args.partial_out +
                                                         at * head_dim + dim)));
      }
      values[threadIdx.x] = total.values;
      stats[threadIdx.x] = {total.max, total.sum};
    }
    __syncthreads();
    if (there && first == 0) {
      for (int i = 1; i < step; ++i) {
        total.Add(stats[i * columns + column], values[i * columns + column]);
      }
      const auto of_head_block = all_rows();
      Store(args, of_head_block.IndexOf(row), of_head_block.HeadOf(row), dim,
            head_dim, total);
    }
    __syncthreads();
  }
}

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_COMBINE_CUH_
