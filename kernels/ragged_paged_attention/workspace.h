// The constants that determine the workspace's size, for the device code and
// for the function that computes the size (ragged_paged_attention_host.cc).
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_WORKSPACE_H_
#define KERNELS_RAGGED_PAGED_ATTENTION_WORKSPACE_H_

#include <cstdint>

namespace torch_xla_ext::ragged {

// Rows of a tile of a sequence with few rows, in the generic kernel.
inline constexpr int kTileRows = 64;
// The rows of a tile of the Hopper kernel. A row is a token and one of the
// heads of a kv head.
inline constexpr int kSm90TileRows = 128;
// The Hopper kernel splits the context of a sequence into at most kMaxParts
// parts, and only if the sequence has at most kMaxSplitTokens query tokens.
inline constexpr int kMaxParts = 64;
inline constexpr int kMaxSplitTokens = 256;

// The Hopper kernel can split the contexts of the first tokens of q, even if
// they are not the only tokens of their sequence. This is the number of these
// tokens.
constexpr int64_t NumTokenPlaces(int64_t num_tokens, int64_t max_num_seqs) {
  const int64_t limit =
      max_num_seqs > kMaxSplitTokens ? max_num_seqs : kMaxSplitTokens;
  if (num_tokens < 2) return 0;
  return num_tokens < limit ? num_tokens : limit;
}

// The number of slots for tiles of the Hopper kernel (sm90_producer.cuh). It
// supports groups of up to kSm90TileRows heads.
constexpr int64_t NumTileSlots(int64_t num_tokens, int64_t max_num_seqs,
                               int64_t group_size) {
  const int64_t size =
      group_size < kSm90TileRows ? kSm90TileRows / group_size : 1;
  return num_tokens / size + max_num_seqs;
}

// The number of counters at the beginning of the Hopper kernel's workspace: a
// multiple of 4.
constexpr int64_t SplitHeader(int64_t num_slots, int64_t num_kv_heads) {
  return (2 + 2 * num_slots * num_kv_heads + 3) / 4 * 4;
}

// The floats of a part of one place and kv head: a multiple of 4.
constexpr int64_t PartSize(int64_t group_size, int64_t head_dim) {
  return group_size * (head_dim + 4);
}

// The rows of a block of FewQueriesSplitKernel: enough for each sequence if all
// have equally many query tokens. 0: those are too many.
constexpr int FewQueriesRows(int64_t num_tokens, int64_t max_num_seqs,
                             int64_t group_size) {
  for (const int rows : {8, 16}) {
    if (rows / group_size * max_num_seqs >= num_tokens) return rows;
  }
  return 0;
}

// The maximum number of thread blocks that any GPU runs at a time, and so of
// the generic kernel's counters.
inline constexpr int64_t kMaxBlocks = 512;

// The number of counters at the beginning of a workspace, for any kernel.
constexpr int64_t NumCounters(int64_t num_slots, int64_t num_kv_heads) {
  const int64_t header = SplitHeader(num_slots, num_kv_heads);
  return header > kMaxBlocks ? header : kMaxBlocks;
}

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_WORKSPACE_H_
