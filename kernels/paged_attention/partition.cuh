// What the kernels of paged_attention are called with, and how they share out
// the work.
//
// A context is cut into units of a few tokens. The units of all sequences, one
// after another, are divided among `parts` of equal size, and one thread block
// works on one part of one head block. A part can begin and end within a
// sequence: then it leaves a partial result, which CombineKernel (combine.cuh)
// joins with those of the sequence's other parts. The lengths are on the GPU,
// so each block finds its part itself.
#ifndef KERNELS_PAGED_ATTENTION_PARTITION_CUH_
#define KERNELS_PAGED_ATTENTION_PARTITION_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace torch_xla_ext {

inline constexpr unsigned kAllLanes = 0xffffffff;
// A block has this many warps, or fewer where shared memory is small.
inline constexpr int kMaxWarps = 4;

// A part that ends within a sequence that begins in it.
struct SplitSequence {
  int32_t seq;     // -1: none
  int32_t pieces;  // how many parts the sequence lies in
};

struct DecodeArgs {
  const void* query;        // T[num_seqs, num_heads, head_dim]
  const void* key_cache;    // C[num_blocks, block_size, num_kv_heads, head_dim]
  const void* value_cache;  // the same
  const int32_t* block_tables;  // [num_seqs, max_blocks]
  const int32_t* context_lens;  // [num_seqs]
  const float* alibi_slopes;    // [num_heads] or null
  void* out;                    // T[num_seqs, num_heads, head_dim]

  int num_seqs;
  int num_heads;
  int num_kv_heads;
  int max_blocks;
  int block_size;
  uint32_t num_blocks;
  int max_tokens;  // the longest context that there are block numbers for
  bool query_is_bf16;

  // The query heads of a kv head are worked on in head blocks of `rows`, the
  // last of which may have fewer.
  int rows;
  int head_blocks;  // for each kv head
  int parts;
  // Whether a part can begin and end within a sequence.
  bool split;
  int stages;

  int sliding_window;  // INT_MAX: none
  float logit_scale;   // scale * key_scale * log2(e): the softmax is of base 2
  float soft_cap;      // in the same units; 0: none
  float value_scale;

  // The workspace: for each head block and part, the results of the piece with
  // which the part begins and of the one with which it ends.
  float* partial_out;     // [all head blocks, parts, 2, rows, head_dim]
  float2* partial_stats;  // [all head blocks, parts, 2, rows]
  SplitSequence* split_sequences;  // [all head blocks, parts]
};

// The units of a sequence that its query sees any of.
struct Units {
  int context;  // tokens
  int first;
  int end;  // more than `first` also of an empty context: somebody writes zeros
};

template <int kUnit>
__device__ inline Units UnitsOf(const DecodeArgs& args, int seq) {
  Units units;
  units.context = min(max(args.context_lens[seq], 0), args.max_tokens);
  units.first = max(units.context - args.sliding_window, 0) / kUnit;
  units.end = max((units.context + kUnit - 1) / kUnit, units.first + 1);
  return units;
}

// A sequence, and its units' place among all.
struct Place {
  int seq;
  Units units;
  int64_t begin;
  int64_t end;
};

template <int kUnit>
__device__ inline Place PlaceOf(const DecodeArgs& args, int seq,
                                int64_t begin) {
  Place place;
  place.seq = seq;
  place.units = UnitsOf<kUnit>(args, seq);
  place.begin = begin;
  place.end = begin + (place.units.end - place.units.first);
  return place;
}

// Units [begin, end) of all; the first is one of sequence `seq`, whose units
// begin at seq_begin. Nothing else is known of an empty part.
struct Part {
  int64_t begin;
  int64_t end;
  int64_t seq_begin;
  int64_t total;  // units of all parts
  int parts;      // that are not empty
  int seq;
};

// Called by a whole block. There is at least one sequence.
template <int kUnit>
__device__ inline Part FindPart(const DecodeArgs& args, int index) {
  __shared__ int64_t warp_sums[kMaxWarps];
  __shared__ Part part;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  // Each thread has some neighbouring sequences.
  const int run = (args.num_seqs + blockDim.x - 1) / blockDim.x;
  const int first = min(static_cast<int>(threadIdx.x) * run, args.num_seqs);
  const int last = min(first + run, args.num_seqs);
  int64_t sum = 0;
  for (int seq = first; seq < last; ++seq) {
    const Units units = UnitsOf<kUnit>(args, seq);
    sum += units.end - units.first;
  }
  int64_t end_of_mine = sum;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int64_t other = __shfl_up_sync(kAllLanes, end_of_mine, distance);
    if (lane >= distance) end_of_mine += other;
  }
  if (lane == 31) warp_sums[warp] = end_of_mine;
  __syncthreads();
  int64_t total = 0;
  for (int i = 0; i < warps; ++i) {
    if (i < warp) end_of_mine += warp_sums[i];
    total += warp_sums[i];
  }
  const int64_t begin_of_mine = end_of_mine - sum;

  const int parts = static_cast<int>(min(int64_t{args.parts}, total));
  int64_t begin = min(int64_t{index}, int64_t{parts}) * total / parts;
  int64_t end = min(int64_t{index} + 1, int64_t{parts}) * total / parts;
  if (threadIdx.x == 0) part = {total, total, total, total, parts, 0};
  __syncthreads();
  // The thread of the sequence that has unit `at`, with that sequence.
  const auto locate = [&](int64_t at, auto found) {
    if (at < begin_of_mine || at >= end_of_mine) return;
    Place place = PlaceOf<kUnit>(args, first, begin_of_mine);
    while (place.end <= at) {
      place = PlaceOf<kUnit>(args, place.seq + 1, place.end);
    }
    // Without splits, a sequence is the part's in which it begins.
    if (!args.split && place.begin < at) {
      ++place.seq;
      place.begin = place.end;
    }
    found(place);
  };
  locate(begin, [&](const Place& place) {
    part.seq = place.seq;
    part.seq_begin = place.begin;
    part.begin = args.split ? begin : place.begin;
  });
  locate(end, [&](const Place& place) {
    part.end = args.split ? end : place.begin;
  });
  __syncthreads();
  return part;
}

// The part that has unit `at`.
__device__ inline int PartOf(const Part& part, int64_t at) {
  return static_cast<int>(((at + 1) * part.parts - 1) / part.total);
}

}  // namespace torch_xla_ext

#endif  // KERNELS_PAGED_ATTENTION_PARTITION_CUH_
