// The copying half of the Hopper kernel: finds the tiles, and copies their
// queries, keys and values to shared memory.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_SM90_PRODUCER_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_SM90_PRODUCER_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/common/wgmma.cuh"
#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/sm90_queue.cuh"
#include "kernels/ragged_paged_attention/sm90_split.cuh"

namespace torch_xla_ext::ragged::sm90 {

inline constexpr int kHeadDim = kSm90HeadDim;
inline constexpr int kHalves =
    kHeadDim / 64;  // the swizzle is 64 elements wide
inline constexpr int kRows = kSm90TileRows;
inline constexpr int kTileSlots = 2;
inline constexpr int kConsumerWarps = 8;
inline constexpr int kWidenerWarps = 4;
inline constexpr int kQBytes = kRows * kHeadDim * 2;
inline constexpr int kKvBytes = kTokens * kHeadDim * 2;
inline constexpr int kNarrowBytes = kTokens * kHeadDim;
inline constexpr int kNarrowStages = 2;

// The dtypes of the products of queries and keys, and of weights and values.
enum class Products {
  kSame,     // all in the dtype of the queries and of the cache
  kWidened,  // F8E4M3FN cache: in the queries' dtype, and in F16
  kF8,       // F8E4M3FN cache and queries: in F8E4M3FN, and in F16
};

// One warpgroup copies, two compute, and one may widen. Registers are per
// thread: a block starts with the same number for each, and the warpgroups
// redistribute them.
template <bool kWidens>
struct BlockShape {
  static constexpr int kThreads = 384;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * 168);
};

template <>
struct BlockShape<true> {
  static constexpr int kThreads = 512;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 208,
                       kWidenerRegisters = 56;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters +
                    kWidenerRegisters ==
                4 * 128);
};

template <Products kProducts>
using BlockOf = BlockShape<kProducts != Products::kSame>;

// The first named barriers for the warpgroups' turns, and within a warpgroup.
inline constexpr int kTurnBarrier = 1, kGroupBarrier = 3;

// The description of a tile, from the copying warp to the computing ones.
struct Tile {
  int is_last;  // no tile: the block's work is done
  int sequence;
  int slot;   // see NumSlots
  int q_row;  // index in q of row 0's token
  int num_rows;
  int position;       // position of the last token that row 0 sees
  int position_step;  // added for each further token: 1 if causal, else 0
  int kv_begin;       // range of tiles of keys and values
  int kv_end;
  int kv_len;
  int kv_head;
  int part;
  int num_parts;  // of the context; 1: it is not split
  int place;      // of the parts in the workspace, if num_parts > 1
};

// Stages of keys or of values.
template <int kCount>
struct Stages {
  uint64_t full[kCount], empty[kCount];
  // For each stage, the pages that are not in the cache, as bits.
  uint32_t bad_pages[kCount];
};

// Keys and values in F8E4M3FN, as they were copied.
template <bool kWidens>
struct NarrowTiles {};

template <>
struct NarrowTiles<true> {
  uint8_t kv[2][kNarrowStages][kNarrowBytes];
  Stages<kNarrowStages> stages[2];
};

// If the block widens, a warpgroup converts the tiles of an F8E4M3FN cache
// (sm90_widen.cuh).
template <bool kWidens>
struct alignas(1024) SharedMemory {
  static constexpr int kStages = kWidens ? 2 : 3;  // tiles of keys, of values
  uint8_t q[kQBytes];
  uint8_t kv[2][kStages][kKvBytes];
  NarrowTiles<kWidens> narrow;
  uint64_t q_full, q_empty;
  uint64_t tile_full[kTileSlots], tile_empty[kTileSlots];
  Tile tiles[kTileSlots];
  Stages<kStages> stages[2];
  // The pages of keys and of values that are being copied.
  int pages[2][kTokens / 8];
  int is_last_part[2];  // per computing warpgroup

  // With Products::kF8, keys stay unconverted, and queries take the place of
  // the widened keys.
  __device__ uint8_t* narrow_q() { return kv[0][0]; }
  __device__ uint64_t* narrow_q_full() { return &stages[0].full[0]; }
  __device__ uint64_t* narrow_q_empty() { return &stages[0].empty[0]; }

  // Where the copy engine writes keys (part 0) or values (part 1).
  __device__ auto& CopiedStages(int part) {
    if constexpr (kWidens) {
      return narrow.stages[part];
    } else {
      return stages[part];
    }
  }
  __device__ uint8_t* CopiedTile(int part, int slot) {
    if constexpr (kWidens) {
      return narrow.kv[part][slot];
    } else {
      return kv[part][slot];
    }
  }
};

template <Products kProducts>
using Memory = SharedMemory<kProducts != Products::kSame>;

// The copy engine's tensor maps.
struct Maps {
  CUtensorMap q;  // [tokens, heads * head_dim as (heads, head_dim)]
  // [pages, page_size, heads * head_dim]
  CUtensorMap keys, values;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kCount>
__device__ inline void InitBarriers(Stages<kCount>& stages, int writers,
                                    int readers) {
  for (int i = 0; i < kCount; ++i) {
    InitBarrier(SharedAddress(&stages.full[i]), writers);
    InitBarrier(SharedAddress(&stages.empty[i]), readers);
  }
}

// Gets the next tile; called by every warp but the first.
template <typename Memory>
__device__ inline Tile TakeTile(Memory& shared, Ring<kTileSlots>& ring) {
  Wait(SharedAddress(&shared.tile_full[ring.slot]), ring.parity);
  const Tile tile = shared.tiles[ring.slot];
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    Arrive(SharedAddress(&shared.tile_empty[ring.slot]));
  }
  ring.Advance();
  return tile;
}

// Copies tiles of keys (part 0) or values (part 1) of the pages of a context;
// called by a warp.
template <bool kWidens>
class PageCopier {
 public:
  __device__ PageCopier(const Arguments& arguments, const CUtensorMap* map,
                        int part, SharedMemory<kWidens>& shared)
      : arguments_(arguments),
        map_(map),
        part_(part),
        shared_(shared),
        lane_(threadIdx.x % 32),
        elected_(ElectOne()),
        box_tokens_(min(arguments.page_size, kTokens)),
        num_boxes_(kTokens / box_tokens_),
        tiles_of_page_(max(arguments.page_size / kTokens, 1)) {}

  // Begins with a tile of queries. Its keys and values are copied from last to
  // first.
  __device__ void Begin(const Tile& tile) {
    tile_ = tile;
    table_ = arguments_.page_indices +
             static_cast<int64_t>(tile.sequence) * arguments_.pages_per_seq;
    n_ = tile.kv_end - 1;
    next_page_ = FetchPage();
  }
  __device__ int num_left() const { return n_ + 1 - tile_.kv_begin; }
  __device__ bool Done() const { return num_left() <= 0; }

  __device__ void CopyNext() {
    auto& stages = shared_.CopiedStages(part_);
    int* pages = shared_.pages[part_];
    const int slot = ring_.slot;
    const bool has_tokens = HasTokens();
    const int page = next_page_;
    const bool in_cache = page >= 0 && page < arguments_.total_num_pages;
    // Page number -1: the copy engine writes zeros.
    if (lane_ < num_boxes_) pages[lane_] = in_cache ? page : -1;
    const uint32_t bad_pages = __ballot_sync(~0u, has_tokens && !in_cache);
    __syncwarp();
    const int x = (tile_.kv_head * 2 + part_) * kHeadDim;
    const int y = n_ % tiles_of_page_ * kTokens;
    --n_;
    next_page_ = FetchPage();
    const uint32_t full = SharedAddress(&stages.full[slot]);
    Wait(SharedAddress(&stages.empty[slot]), ring_.parity ^ 1);
    if (elected_) {
      stages.bad_pages[slot] = bad_pages;
      ArriveExpecting(full, kWidens ? kNarrowBytes : kKvBytes);
      uint32_t to = SharedAddress(shared_.CopiedTile(part_, slot));
#pragma unroll 4
      for (int i = 0; i < num_boxes_; ++i) {
        const int page = pages[i];
        // Rows of a box have 128 bytes.
#pragma unroll
        for (int half = 0; half < (kWidens ? 1 : kHalves); ++half) {
          CopyBox(to + half * (kTokens * 128), map_, x + half * 64, y, page,
                  full);
        }
        to += box_tokens_ * 128;
      }
    }
    __syncwarp();
    ring_.Advance();
  }

 private:
  // Whether there are tokens in box `lane` of tile n_.
  __device__ bool HasTokens() const {
    return n_ >= tile_.kv_begin && lane_ < num_boxes_ &&
           n_ * kTokens + lane_ * box_tokens_ < tile_.kv_len;
  }
  // The page of box `lane` of tile n_. The load is slow, so it is issued one
  // tile ahead.
  __device__ int FetchPage() const {
    if (!HasTokens()) return -1;
    return __ldg(table_ + n_ / tiles_of_page_ * num_boxes_ + lane_);
  }

  const Arguments& arguments_;
  const CUtensorMap* map_;
  const int part_;
  SharedMemory<kWidens>& shared_;
  const int lane_;
  const bool elected_;
  // A box is a page, or kTokens tokens of a larger one, by 128 bytes.
  const int box_tokens_, num_boxes_, tiles_of_page_;
  Ring<kWidens ? kNarrowStages : SharedMemory<kWidens>::kStages> ring_;
  Tile tile_;
  const int32_t* table_;
  int n_;
  int next_page_;
};

// Query rows are cut into tiles of `size` tokens within each sequence. Their
// number is known only on the device, so there is a slot for every possible
// tile: tile i of sequence s is in slot
//   floor(cu_q_lens[s] / size) + s + i.
// Slots do not collide, since floor(x) + ceil(y) <= floor(x + y) + 1; some are
// empty. If cu_q_lens decreases, which it must not, tiles may be missed. (The
// idea is that of vLLM's triton_unified_attention.py.)
__device__ inline int NumSlots(const Arguments& arguments, int size) {
  return arguments.num_tokens / size + arguments.max_num_seqs;
}

// Finds the sequence and the tile of a slot; called by whole warps. Returns
// false if the slot is empty.
__device__ inline bool FindTile(const Arguments& arguments, int slot, int size,
                                Sequence* sequence, int* tile) {
  const auto first_slot = [&](int s) {
    return RowBegin(arguments, s) / size + s;
  };
  const int s = FindSequence(arguments, slot, first_slot);
  if (s < 0) return false;
  *sequence = LoadSequence(arguments, s);
  *tile = slot - (sequence->begin / size + s);
  return *tile * size < sequence->q_len;
}

// Finds the tile of the queue's index; called by a warp. Returns false if there
// is none; higher indices may still have tiles.
__device__ inline bool MakeTile(const Arguments& arguments, const Split& split,
                                const TileQueue& queue, Tile* tile) {
  const int index = queue.index();
  const int tokens_of_tile = kRows / arguments.group_size;
  const int num_slots = NumSlots(arguments, tokens_of_tile);
  // The last tiles of a sequence, which have the most work, come first.
  const int slot = num_slots - 1 - index / arguments.num_kv_heads;
  Sequence sequence;
  int tile_of_sequence, part = 0;
  if (slot >= 0) {
    if (!FindTile(arguments, slot, tokens_of_tile, &sequence,
                  &tile_of_sequence)) {
      return false;
    }
    if (queue.is_mirrored()) {
      tile_of_sequence =
          (sequence.q_len - 1) / tokens_of_tile - tile_of_sequence;
    }
  } else if (!FindPart(arguments, split,
                       index / arguments.num_kv_heads - num_slots,
                       tokens_of_tile, &sequence, &tile_of_sequence, &part)) {
    tile->is_last = true;
    return true;
  }
  const int token = tile_of_sequence * tokens_of_tile;
  const int num_tokens = min(sequence.q_len - token, tokens_of_tile);
  tile->sequence = sequence.index;
  tile->slot =
      sequence.begin / tokens_of_tile + sequence.index + tile_of_sequence;
  tile->q_row = sequence.begin + token;
  tile->num_rows = num_tokens * arguments.group_size;
  tile->position = PositionOf(arguments, sequence, token);
  tile->position_step = arguments.causal ? 1 : 0;
  tile->kv_len = sequence.kv_len;
  tile->kv_head = index % arguments.num_kv_heads;
  const KvRange range =
      VisibleTiles(arguments, sequence, token, token + num_tokens);
  tile->kv_begin = range.begin;
  tile->kv_end = range.end;
  tile->part = part;
  const Parts parts = SplitContext(arguments, split, sequence, tokens_of_tile);
  tile->num_parts = parts.count;
  if (parts.count > 1) {
    tile->place = FirstPlace(arguments, split, sequence) + token;
    tile->kv_begin = min(range.begin + part * parts.tiles, range.end);
    tile->kv_end = min(tile->kv_begin + parts.tiles, range.end);
  }
  return true;
}

// Run by one warp: finds tiles, and copies their queries and keys.
template <bool kWidens>
__device__ inline void ProduceTiles(const Arguments& arguments,
                                    const Split& split, const Maps& maps,
                                    SharedMemory<kWidens>& shared) {
  const int lane = threadIdx.x % 32;
  const int q_bytes =
      kRows / arguments.group_size * arguments.group_size * kHeadDim * 2;
  PageCopier<kWidens> keys(arguments, &maps.keys, 0, shared);
  Ring<kTileSlots> tile_ring;
  Ring<1> q_ring;

  const int num_slots = NumSlots(arguments, kRows / arguments.group_size);
  TileQueue queue(arguments, split, num_slots * arguments.num_kv_heads);
  for (;; queue.Advance()) {
    Tile tile = {};
    if (!MakeTile(arguments, split, queue, &tile)) {
      queue.Take();
      continue;
    }
    Wait(SharedAddress(&shared.tile_empty[tile_ring.slot]),
         tile_ring.parity ^ 1);
    if (lane == 0) {
      shared.tiles[tile_ring.slot] = tile;
      Arrive(SharedAddress(&shared.tile_full[tile_ring.slot]));
    }
    __syncwarp();
    tile_ring.Advance();
    if (tile.is_last) break;
    if (tile.kv_begin == tile.kv_end) {
      queue.Take();
      continue;
    }

    keys.Begin(tile);
    keys.CopyNext();
    Wait(SharedAddress(&shared.q_empty), q_ring.parity ^ 1);
    if (ElectOne()) {
      const uint32_t full = SharedAddress(&shared.q_full);
      ArriveExpecting(full, q_bytes);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        CopyBox(SharedAddress(shared.q) + half * (kRows * 128), &maps.q,
                half * 64, tile.kv_head * arguments.group_size, tile.q_row,
                full);
      }
    }
    __syncwarp();
    q_ring.Advance();
    // Take the next index as late as possible, so that idle blocks can take it
    // first.
    while (keys.num_left() > 1) keys.CopyNext();
    queue.Take();
    if (!keys.Done()) keys.CopyNext();
  }
}

// Run by another warp: copies the values.
template <bool kWidens>
__device__ inline void ProduceValues(const Arguments& arguments,
                                     const Maps& maps,
                                     SharedMemory<kWidens>& shared) {
  PageCopier<kWidens> values(arguments, &maps.values, 1, shared);
  Ring<kTileSlots> tile_ring;
  while (true) {
    const Tile tile = TakeTile(shared, tile_ring);
    if (tile.is_last) break;
    if (tile.kv_begin == tile.kv_end) continue;
    values.Begin(tile);
    while (!values.Done()) values.CopyNext();
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace torch_xla_ext::ragged::sm90

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_SM90_PRODUCER_CUH_
