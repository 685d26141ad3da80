// The arguments of the kernels of paged_attention, and how they divide the
// work.
//
// A context is cut into units of a few tokens. The units of all sequences, one
// after another, are divided among `parts` of equal size, and one thread block
// works on one part of one head block. A part can begin and end within a
// sequence: then it leaves a partial result, which CombineKernel (combine.cuh)
// combines with those of the sequence's other parts. The lengths are on the
// GPU, so each block finds its part itself.
#ifndef KERNELS_PAGED_ATTENTION_PARTITION_CUH_
#define KERNELS_PAGED_ATTENTION_PARTITION_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/device.h"
#include "torch_xla_ext/cuda_status.h"
#include "torch_xla_ext/dtype.h"

namespace torch_xla_ext::paged_attention {

inline constexpr unsigned kAllLanes = 0xffffffff;
// A block has at most this many warps; fewer if there is little shared memory.
inline constexpr int kMaxWarps = 4;

// The architecture whose code a GPU runs: the newest compiled one that is not
// newer than the GPU. Not inline, because the linker keeps only one definition
// of an inline function, and files that are compiled for 9.0 alone include this
// header, too.
int CodeArch(const Device& device);

// Division of numbers below 2^31 by a constant of the call, as a multiplication
// (Granlund and Montgomery 1994).
struct Divisor {
  uint32_t divisor;
  uint32_t multiplier;
  int shift;

  static Divisor Of(uint32_t divisor) {
    int bits = 0;  // divisor <= 2^bits
    while ((uint64_t{1} << bits) < divisor) ++bits;
    const int shift = 31 + bits;
    const uint64_t multiplier =
        ((uint64_t{1} << shift) + divisor - 1) / divisor;
    return {divisor, static_cast<uint32_t>(multiplier), shift};
  }
  __device__ uint32_t Divide(uint32_t x) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(x) * multiplier >>
                                 shift);
  }
};

struct DecodeArgs {
  const void* query;  // T[num_seqs, num_heads, head_dim]
  // C[num_blocks, block_size, num_kv_heads * head_step, head_dim], starting at
  // the first kv head; kv heads are head_step apart.
  const void* key_cache;
  const void* value_cache;      // the same
  const int32_t* block_tables;  // [num_seqs, max_blocks]
  const int32_t* context_lens;  // [num_seqs]
  const float* alibi_slopes;    // [num_heads] or null
  const float* sinks;           // the same
  void* out;                    // T[num_seqs, num_heads, head_dim]
  float* lse;                   // [num_seqs, num_heads] or null

  // For a ragged batch, else null: row s of the query belongs to sequence s if
  // HasOwnRow is true; otherwise the row is set to the result of an empty
  // sequence.
  const int32_t* cu_q_lens;
  const int32_t* num_live_seqs;
  // Whether the kernel after ClusterKernel, which waits for ClusterKernel's
  // end, may occupy multiprocessors that become free before.
  bool lets_next_start;
  // Words that one block sets to zero, for a later kernel.
  uint32_t* zeroed;
  int num_zeroed;

  int num_seqs;
  int num_heads;
  int num_kv_heads;
  int head_step;
  int max_blocks;
  Divisor block_size;
  uint32_t num_blocks;
  int max_tokens;  // the longest context that the block tables can hold
  bool query_is_bf16;

  // The query heads of a kv head are processed in head blocks of `rows`; the
  // last one may have fewer.
  int rows;
  int head_blocks;  // per kv head
  int parts;
  // Whether a part can begin and end within a sequence. Splits decides for the
  // lengths at hand.
  bool split;
  int stages;

  int sliding_window;  // INT_MAX: none
  float logit_scale;   // scale * key_scale * log2(e): the softmax is of base 2
  float soft_cap;      // to the base 2, too; 0: none
  float value_scale;

  // The workspace: for each head block and part, the results of the part's
  // first and last pieces, if they belong to sequences that span several parts.
  float* partial_out;     // [all head blocks, parts, 2, rows, head_dim]
  float2* partial_stats;  // [all head blocks, parts, 2, rows]
};

// Launches the kernels for a cache of type C, Bf16OrF16 or __nv_fp8_e4m3, and a
// head_dim of 64, 96, 128, 192 or 256.
template <typename C>
Status LaunchForCache(cudaStream_t stream, int64_t head_dim, float* workspace,
                      int64_t workspace_size, const DecodeArgs& args);

// Launches the kernels for a cache of type `cache_dtype`. Sets the members that
// follow from the number of heads: rows, head_blocks.
Status LaunchDecode(cudaStream_t stream, DType cache_dtype, int64_t head_dim,
                    float* workspace, int64_t workspace_size, DecodeArgs args);

// Whether row s of a ragged batch with num_rows rows is the only query of
// sequence s.
__device__ inline bool HasOwnRow(const int32_t* cu_q_lens, int num_rows,
                                 const int32_t* num_live_seqs, int s) {
  const int begin = __ldg(cu_q_lens + s), end = __ldg(cu_q_lens + s + 1);
  const int live = __ldg(num_live_seqs);
  // No branches here: they would wait for the loads one by one.
  const bool begins = (begin == s) | ((s == 0) & (begin < 0));
  const bool ends = (end == s + 1) | ((s + 1 == num_rows) & (end > num_rows));
  return begins & ends & (s < live);
}

// If each sequence can have a part of its own, contexts of at most this many
// tokens are not split, because combining the results would take longer.
inline constexpr int kMostWhole = 512;

// The units of a sequence with tokens that its query sees.
struct Units {
  int context;  // tokens
  int first;
  int end;  // more than `first` even for an empty context, so that zeros are
            // written; `first` for a sequence without a row

  __device__ int Count() const { return end - first; }
};

// Whether sequences are split. `is_any_long`: a context has more than
// kMostWhole tokens, rounded up to units.
template <typename Args>
__device__ inline bool Splits(const Args& args, bool is_any_long) {
  return args.split && (is_any_long || args.num_seqs > args.parts);
}

template <int kUnit>
__device__ inline Units UnitsOf(const DecodeArgs& args, int seq) {
  Units units;
  units.context = min(max(args.context_lens[seq], 0), args.max_tokens);
  bool has_row = true;
  // Marked as unlikely, so that the compiler moves this code out of the way of
  // other calls.
  if (__builtin_expect(args.cu_q_lens != nullptr, false)) {
    has_row = HasOwnRow(args.cu_q_lens, args.num_seqs, args.num_live_seqs, seq);
    units.context = has_row ? units.context : 0;
  }
  units.first = max(units.context - args.sliding_window, 0) / kUnit;
  units.end = max((units.context + kUnit - 1) / kUnit, units.first + has_row);
  return units;
}

// A sequence, and the place of its units among those of all sequences.
struct Place {
  int seq;
  Units units;
  int begin;
  int end;
};

// `Args` are DecodeArgs, or a class derived from it that has its own UnitsOf.
template <int kUnit, typename Args>
__device__ inline Place PlaceOf(const Args& args, int seq, int begin) {
  Place place;
  place.seq = seq;
  place.units = UnitsOf<kUnit>(args, seq);
  place.begin = begin;
  place.end = begin + place.units.Count();
  return place;
}

// The division of `total` units: the first `longer` parts have `size` + 1
// units, the others `size`.
struct Division {
  int parts;
  int size;
  int longer;

  __device__ Division(int total, int parts)
      : parts(parts),
        size(static_cast<uint32_t>(total) / static_cast<uint32_t>(parts)),
        longer(total - parts * size) {}
  // The beginning of a part; for parts past the last, the end of all units.
  __device__ int Begin(int part) const {
    part = min(part, parts);
    return part * size + min(part, longer);
  }
  // The part that has unit `at`.
  __device__ int PartOf(int at) const {
    const uint32_t rest = at - longer * (size + 1);
    return at < longer * (size + 1)
               ? static_cast<uint32_t>(at) / static_cast<uint32_t>(size + 1)
               : longer + rest / static_cast<uint32_t>(size);
  }
};

// Called at the end of each thread block.
__device__ inline void SetZeros(const DecodeArgs& args) {
  if (__builtin_expect(args.num_zeroed == 0, true)) return;
  if (blockIdx.x + blockIdx.y + blockIdx.z != 0) return;
#pragma unroll 1
  for (int i = threadIdx.x; i < args.num_zeroed; i += blockDim.x) {
    args.zeroed[i] = 0;
  }
}

__device__ inline Division Divide(const DecodeArgs& args, int total) {
  return Division(total, max(min(args.parts, total), 1));
}

// Units [begin, end) of all. If the part is not empty, its first unit belongs
// to sequence `seq`, whose units begin at seq_begin.
struct Part {
  int begin;
  int end;
  int seq;
  int seq_begin;
  int total;   // units of all parts
  bool split;  // whether it can begin and end within a sequence
  Place next;  // of unit `end`; begins at `end` if there is none
};

// Whether the kernel leaves the batch to another kernel. Called by a whole
// block; each thread checks a range of the sequences.
__device__ inline bool Refuses(const DecodeArgs& args, int first, int last) {
  return false;
}

// Called by a whole block. There is at least one sequence.
template <int kUnit, typename Args>
__device__ inline Part FindPart(const Args& args, int index) {
  __shared__ int warp_sums[32];
  __shared__ Part part;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  // Each thread has a run of consecutive sequences.
  const int run = (args.num_seqs + blockDim.x - 1) / blockDim.x;
  const int first = min(static_cast<int>(threadIdx.x) * run, args.num_seqs);
  const int last = min(first + run, args.num_seqs);
  int sum = 0;
  bool is_long = false;
#pragma unroll 1
  for (int seq = first; seq < last; ++seq) {
    const int count = UnitsOf<kUnit>(args, seq).Count();
    sum += count;
    is_long |= count > kMostWhole / kUnit;
  }
  if (Refuses(args, first, last)) sum = 0;
  int end_of_mine = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, end_of_mine, distance);
    if (lane >= distance) end_of_mine += other;
  }
  if (lane == 31) warp_sums[warp] = end_of_mine;
  const bool split = Splits(args, __syncthreads_or(is_long));
  int total = 0;
  for (int i = 0; i < warps; ++i) {
    if (i < warp) end_of_mine += warp_sums[i];
    total += warp_sums[i];
  }
  const int begin_of_mine = end_of_mine - sum;

  const Division division = Divide(args, total);
  const int begin = division.Begin(index), end = division.Begin(index + 1);
  // Only the thread whose range contains unit `at` continues.
  const auto locate = [&](int at, auto found) {
    if (at < begin_of_mine || at >= end_of_mine) return;
    Place place = PlaceOf<kUnit>(args, first, begin_of_mine);
    while (place.end <= at) {
      place = PlaceOf<kUnit>(args, place.seq + 1, place.end);
    }
    // Without splits, a sequence belongs to the part in which it begins.
    if (!split && place.begin < at) {
      ++place.seq;
      place.begin = place.end;
    }
    found(place);
  };
  if (threadIdx.x == 0) {
    part.total = total;
    part.split = split;
    if (begin == total) part.begin = total;
    if (end == total) part.end = part.next.begin = total;
  }
  locate(begin, [&](const Place& place) {
    part.seq = place.seq;
    part.seq_begin = place.begin;
    part.begin = split ? begin : place.begin;
  });
  locate(end, [&](const Place& place) {
    part.end = split ? end : place.begin;
    part.next = place;
  });
  __syncthreads();
  return part;
}

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_PARTITION_CUH_
