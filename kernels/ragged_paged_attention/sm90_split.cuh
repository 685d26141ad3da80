// Splits a long context of a sequence with few query rows over several blocks:
// Flash-Decoding (Dao et al., 2023). Each part leaves its result in the
// workspace. The last one to finish combines them, always in the same order; if
// that would delay the end, CombineKernel does (sm90_combine.cuh).
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_SM90_SPLIT_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_SM90_SPLIT_CUH_

#include <algorithm>
#include <cstdint>

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/workspace.h"

namespace torch_xla_ext::ragged::sm90 {

inline constexpr int kTokens = kSm90TileTokens;
inline constexpr int kMinPartTiles = 2;
// Combining the parts of several query tokens takes as long as some tiles of
// keys. So with several query tokens, contexts of fewer tiles are not split.
inline constexpr int kMinSplitTiles = 12;
// A longer context is split even if there are enough other contexts for all
// blocks.
inline constexpr int kMaxPartTiles = 64;

// The workspace, which is aligned to 16 bytes: the tile counter; then, for each
// slot, kv head and warpgroup, the number of parts that have arrived; then,
// again aligned to 16 bytes, max_parts parts for each kv head of each place. A
// part has group_size rows of head_dim sums, and a maximum and a sum of weights
// for each row.
//
// A place is room for one query token. There is one for each sequence, used if
// it has only one query token, and one for each of the first tokens of q.
struct Split {
  int max_parts;                // 1: nothing is split
  unsigned long long* counter;  // counts tiles; null without a workspace
  unsigned* arrivals;
  float* parts;
  int64_t part_size;
  int num_token_places;
  int num_blocks;  // of the Hopper kernel
  bool has_combine_kernel;
};

inline Split MakeSplit(const Arguments& arguments, int head_dim,
                       int num_blocks) {
  const int64_t num_slots = NumTileSlots(
      arguments.num_tokens, arguments.max_num_seqs, arguments.group_size);
  const int64_t header = SplitHeader(num_slots, arguments.num_kv_heads);
  Split split = {};
  split.num_blocks = num_blocks;
  split.num_token_places = static_cast<int>(
      NumTokenPlaces(arguments.num_tokens, arguments.max_num_seqs));
  const int64_t num_pairs =
      (int64_t{1} * arguments.max_num_seqs + split.num_token_places) *
      arguments.num_kv_heads;
  split.max_parts = 1;
  if (arguments.workspace_size < 2) return split;
  split.counter = reinterpret_cast<unsigned long long*>(arguments.workspace);
  split.arrivals = reinterpret_cast<unsigned*>(split.counter + 1);
  split.parts = arguments.workspace + header;
  split.part_size = PartSize(arguments.group_size, head_dim);
  const int64_t space = arguments.workspace_size - header;
  if (num_pairs > 0 && space > 0) {
    split.max_parts = static_cast<int>(std::clamp<int64_t>(
        space / (num_pairs * split.part_size), 1, kMaxParts));
  }
  // With fewer tiles than blocks, most contexts are split. With more, or if
  // this kernel seldom has work, another kernel would cost more time than it
  // saves.
  const int64_t max_tiles =
      int64_t{1} * arguments.pages_per_seq * arguments.page_size / kTokens;
  split.has_combine_kernel = split.max_parts > 1 && !arguments.decoded &&
                             arguments.few_queries == 0 &&
                             num_slots * arguments.num_kv_heads < num_blocks &&
                             max_tiles >= kMinSplitTiles;
  return split;
}

// The tiles of keys that are visible to the rows of tokens [token, end_token)
// of a sequence.
struct KvRange {
  int begin, end;
};
__device__ inline KvRange VisibleTiles(const Arguments& arguments,
                                       const Sequence& sequence, int token,
                                       int end_token) {
  const int position = PositionOf(arguments, sequence, token);
  const int last = PositionOf(arguments, sequence, end_token - 1);
  const int end = CeilDivide(max(last + 1, 0), kTokens);
  const int begin =
      max(max(position, 0) - arguments.sliding_window + 1, 0) / kTokens;
  return {min(begin, end), end};
}

// The place of a sequence's first query token; the places of its other tokens
// follow. Negative if its context is not split.
__device__ inline int FirstPlace(const Arguments& arguments, const Split& split,
                                 const Sequence& sequence) {
  const int q_len = sequence.q_len;
  if (q_len == 1) return sequence.index;
  return q_len <= kMaxSplitTokens && q_len > 1 &&
                 sequence.begin + q_len <= split.num_token_places
             ? arguments.max_num_seqs + sequence.begin
             : -1;
}

// The parts of a sequence's context, the same number for each tile of its query
// tokens; tiles that see less of the context have empty ones.
struct Parts {
  int count;
  int tiles;  // tiles of keys per part
};

__device__ inline Parts SplitContext(const Arguments& arguments,
                                     const Split& split,
                                     const Sequence& sequence,
                                     int tile_tokens) {
  const KvRange range = VisibleTiles(arguments, sequence, 0, sequence.q_len);
  const int tiles = range.end - range.begin;
  if (split.max_parts == 1 || FirstPlace(arguments, split, sequence) < 0 ||
      (sequence.q_len > 1 && tiles < kMinSplitTiles)) {
    return {1, tiles};
  }
  // One part for each block, if all sequences are like this one.
  const int wanted =
      split.num_blocks / (NumSequences(arguments) * arguments.num_kv_heads *
                          CeilDivide(sequence.q_len, tile_tokens));
  const int count =
      min(max(wanted, CeilDivide(tiles, kMaxPartTiles)), split.max_parts);
  const int part_tiles = max(CeilDivide(tiles, max(count, 1)), kMinPartTiles);
  return {max(CeilDivide(tiles, part_tiles), 1), part_tiles};
}

// Finds the `index`-th of the parts of all tiles of `tile_tokens` query tokens,
// not counting each tile's first one; called by whole warps.
__device__ inline bool FindPart(const Arguments& arguments, const Split& split,
                                int index, int tile_tokens, Sequence* sequence,
                                int* tile, int* part) {
  if (split.max_parts == 1) return false;
  const int lane = threadIdx.x % 32;
  const int num_seqs = NumSequences(arguments);
  for (int first = 0; first < num_seqs; first += 32) {
    int count = 0;
    if (first + lane < num_seqs) {
      const Sequence candidate = LoadSequence(arguments, first + lane);
      const Parts parts =
          SplitContext(arguments, split, candidate, tile_tokens);
      count = (parts.count - 1) * CeilDivide(candidate.q_len, tile_tokens);
    }
    int sum = count;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(~0u, sum, distance);
      if (lane >= distance) sum += other;
    }
    const uint32_t behind = __ballot_sync(~0u, index < sum);
    if (behind != 0) {
      const int found = __ffs(behind) - 1;
      *sequence = LoadSequence(arguments, first + found);
      const int tiles = CeilDivide(sequence->q_len, tile_tokens);
      index -= __shfl_sync(~0u, sum - count, found);
      *tile = index % tiles;
      *part = 1 + index / tiles;
      return true;
    }
    index -= __shfl_sync(~0u, sum, 31);
  }
  return false;
}

// The address of a place's first part.
__device__ inline float* PartsOf(const Arguments& arguments, const Split& split,
                                 int place, int kv_head) {
  return split.parts + (int64_t{1} * place * arguments.num_kv_heads + kv_head) *
                           split.max_parts * split.part_size;
}

// Combines the parts of the rows [first_row, end_row) of a tile and kv head;
// row 0 belongs to token q_row. Called by four warps, which take turns
// with the rows. A part has sums of values weighted by 2^(logit - maximum), and
// sums of weights. Lane i has the statistics of parts i and i + 32, and sums up
// four dimensions.
template <typename T, int kHeadDim>
__device__ inline void CombineParts(const Arguments& arguments,
                                    const Split& split, int place, int kv_head,
                                    int num_parts, int q_row, int first_row,
                                    int end_row, int thread) {
  static_assert(kHeadDim == 32 * 4 && kMaxParts == 64);
  const int group = arguments.group_size;
  const int lane = thread % 32;
#pragma unroll 1
  for (int row = first_row + thread / 32; row < end_row; row += 4) {
    const int token = row / group, head = row % group;
    const float* parts = PartsOf(arguments, split, place + token, kv_head);
    const float* limits = parts + group * kHeadDim + head * 2;
    const float* values = parts + head * kHeadDim + lane * 4;
    float2 limit[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int p = i * 32 + lane;
      limit[i] = p < num_parts ? __ldcg(reinterpret_cast<const float2*>(
                                     limits + p * split.part_size))
                               : make_float2(-INFINITY, 0);
    }
    float highest = fmaxf(limit[0].x, limit[1].x);
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, lanes));
    }
    const float base = highest == -INFINITY ? 0 : highest;
    const float weight[2] = {Exp2(limit[0].x - base), Exp2(limit[1].x - base)};
    float sum = weight[0] * limit[0].y + weight[1] * limit[1].y;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      sum += __shfl_xor_sync(~0u, sum, lanes);
    }
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int p = 0; p < num_parts; ++p) {
      const float4 value =
          __ldcg(reinterpret_cast<const float4*>(values + p * split.part_size));
      const float w = __shfl_sync(~0u, p < 32 ? weight[0] : weight[1], p % 32);
      total.x += w * value.x;
      total.y += w * value.y;
      total.z += w * value.z;
      total.w += w * value.w;
    }
    const int64_t out_row =
        int64_t{1} * (q_row + token) * arguments.num_q_heads + kv_head * group +
        head;
    const float factor = Finish(arguments, out_row, lane == 0, highest, sum);
    reinterpret_cast<uint2*>(arguments.out)[out_row * 32 + lane] =
        make_uint2(Pack<T>(total.x * factor, total.y * factor),
                   Pack<T>(total.z * factor, total.w * factor));
  }
}

}  // namespace torch_xla_ext::ragged::sm90

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_SM90_SPLIT_CUH_
