// The division of work among the generic kernel's blocks: what each of them
// computes, and where long contexts are split.
//
// A "long" sequence, with many query rows, has enough tiles of them for all
// blocks: each tile is computed by one block. The other sequences, mainly
// decode steps, are computed by blocks with equal shares of the work: the
// contexts of their tiles are concatenated and divided evenly, at arbitrary
// positions. A tile that spans several shares leaves its pieces in the
// workspace, and the block that finishes the last piece combines them, always
// in the same order (Flash-Decoding, Dao et al., 2023; stream-K, Osama et al.,
// 2023).
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_WORK_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_WORK_CUH_

#include <algorithm>
#include <climits>
#include <cstdint>

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/generic_shape.cuh"

namespace torch_xla_ext::ragged {

// A sequence with more tiles of query rows than this is long.
inline constexpr int kShortTiles = 8;
// A share has at least this many tokens of a tile, if the tile has as many.
inline constexpr int kMinShare = 256;

// The workspace: for each kv head and share, the number of pieces that have
// arrived of the share's last tile; then, aligned to 16 bytes, for each kv head
// and share, its first and last pieces. A piece has rows of head_dim sums, and
// a maximum and a sum of weights for each row.
struct Shares {
  int count;           // per kv head; fewer may be used
  unsigned* arrivals;  // null: nothing is split
  float* pieces;
  int64_t piece_floats;  // for which there is room
  int long_tile_rows;
  int long_slots;
};

inline Shares MakeShares(const Arguments& arguments, int blocks) {
  Shares shares = {};
  shares.count = std::max(blocks / std::max(arguments.num_kv_heads, 1), 1);
  const int64_t header =
      (int64_t{shares.count} * arguments.num_kv_heads + 3) / 4 * 4;
  shares.piece_floats = arguments.workspace_size - header;
  if (shares.piece_floats > 0 && shares.count > 1) {
    shares.arrivals = reinterpret_cast<unsigned*>(arguments.workspace);
    shares.pieces = arguments.workspace + header;
  }
  return shares;
}

// The floats of a piece of `rows` rows: a multiple of 4.
__host__ __device__ inline int64_t PieceFloats(int rows, int head_dim) {
  return int64_t{1} * rows * (head_dim + 4);
}

// Some query rows of one sequence and kv head (a row is a token and a head of
// the group), and a range of units of tokens.
struct Piece {
  Sequence sequence;
  int first_row;  // first row among the sequence's rows
  int num_rows;
  int kv_begin, kv_end;  // in units of tokens, some of which may be masked
  // The destination of the sums. Null if the piece is the whole tile: then they
  // go to `out`.
  float* sums;
  float* first_sums;  // of the tile's first piece; other pieces start
  float* other_sums;  // here, each piece_stride further than the last
  int64_t piece_stride;
  int num_pieces;
  unsigned* arrivals;
};

// Tile i, of `tile_rows` rows, of long sequence s is the work of slot
//   floor(rows before s / SlotRows(tile_rows)) + i,
// which has a block for each kv head. Slots do not collide, since a long
// sequence of n rows has n / SlotRows(tile_rows) >= n / tile_rows + 1; some are
// empty. If cu_q_lens decreases, which it must not, tiles may be missed.
__host__ __device__ inline int SlotRows(int tile_rows) {
  return tile_rows / 4 * 3;
}
inline constexpr int kMaxTileRows = 128;
static_assert(kShortTiles * kTileRows >= 3 * kMaxTileRows);

inline int NumLongSlots(const Arguments& arguments, int tile_rows) {
  const int rows = arguments.num_tokens * arguments.group_size;
  return rows > kShortTiles * kTileRows ? rows / SlotRows(tile_rows) + 1 : 0;
}

// Finds the work of a slot; called by a whole warp, whose first thread writes
// it. Returns false if the slot is empty.
template <int kUnit>
__device__ inline bool FindLongTile(const Arguments& arguments, int slot,
                                    int tile_rows, Piece* piece) {
  const int group = arguments.group_size;
  const auto first_slot = [&](int s) {
    return RowBegin(arguments, s) * group / SlotRows(tile_rows);
  };
  const int s = FindSequence(arguments, slot, first_slot);
  if (s < 0) return false;
  const Sequence sequence = LoadSequence(arguments, s);
  const int rows = sequence.q_len * group;
  const int first_row =
      (slot - sequence.begin * group / SlotRows(tile_rows)) * tile_rows;
  if (rows <= kShortTiles * kTileRows || first_row >= rows) return false;
  if (threadIdx.x % 32 != 0) return true;
  piece->sequence = sequence;
  piece->first_row = first_row;
  piece->num_rows = min(rows - first_row, tile_rows);
  piece->kv_begin = 0;
  piece->kv_end = CeilDivide(sequence.kv_len, kUnit);
  piece->sums = nullptr;
  return true;
}

// A short sequence's work: for each of `row_tiles` tiles, the units [kv_begin,
// kv_begin + kv_units) of tokens. It starts at `begin` in the work of all
// sequences.
struct ShortWork {
  Sequence sequence;
  int row_tiles;  // 0 if the sequence is long or has no rows
  int kv_begin;
  int kv_units;
  int64_t begin;

  __device__ int64_t Size() const { return int64_t{1} * row_tiles * kv_units; }
  __device__ int64_t End() const { return begin + Size(); }
};

template <int kUnit>
__device__ inline ShortWork LoadShortWork(const Arguments& arguments, int s,
                                          int64_t begin) {
  ShortWork work;
  work.sequence = LoadSequence(arguments, s);
  work.row_tiles =
      CeilDivide(work.sequence.q_len * arguments.group_size, kTileRows);
  if (work.row_tiles > kShortTiles) work.row_tiles = 0;
  work.kv_begin = max(max(PositionOf(arguments, work.sequence, 0), 0) -
                          arguments.sliding_window + 1,
                      0) /
                  kUnit;
  // At least one unit, so that zeros are written if there are no tokens.
  work.kv_units =
      max(CeilDivide(work.sequence.kv_len, kUnit) - work.kv_begin, 1);
  work.begin = begin;
  return work;
}

// Divides non-negative numbers. A 32-bit division is much faster.
__device__ inline int64_t Divide(int64_t a, int64_t b) {
  if ((a | b) >> 32 != 0) return a / b;
  return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
}

// The division of `total` units: the first `longer` of `count` shares have
// `size` + 1 units, the others `size`.
struct Division {
  int count;
  int64_t size, longer;

  __device__ static Division Of(int64_t total, int count) {
    const int64_t size = Divide(total, count);
    return {count, size, total - size * count};
  }
  __device__ int64_t Begin(int share) const {
    return share * size + min(int64_t{share}, longer);
  }
  // The share that has unit `at`.
  __device__ int ShareOf(int64_t at) const {
    const int64_t rest = at - longer * (size + 1);
    return static_cast<int>(rest < 0 ? Divide(at, size + 1)
                                     : longer + Divide(rest, size));
  }
};

// A block's progress in its share. It is in shared memory, because registers
// are scarce.
struct ShareState {
  int share;
  int kv_head;
  bool split;
  int64_t stride;  // of pieces
  Division division;
  int64_t at, end;
  ShortWork work;  // the work that contains unit `at`
};

// Finds where a share begins; called by a whole block. All blocks divide the
// work in the same way.
template <int kUnit>
__device__ inline void StartShare(const Arguments& arguments,
                                  const Shares& shares, int share, int kv_head,
                                  ShareState* state) {
  __shared__ int64_t warp_sums[kWarps];
  __shared__ int warp_rows[kWarps];
  const int num_seqs = NumSequences(arguments);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Each thread has a run of consecutive sequences.
  const int run = CeilDivide(num_seqs, kGenericThreads);
  const int first = min(static_cast<int>(threadIdx.x) * run, num_seqs);
  const int last = min(first + run, num_seqs);
  int64_t sum = 0;
  int rows = 0;
#pragma unroll 1
  for (int s = first; s < last; ++s) {
    const ShortWork work = LoadShortWork<kUnit>(arguments, s, 0);
    sum += work.Size();
    if (work.row_tiles > 0) {
      rows = max(rows, work.sequence.q_len * arguments.group_size);
    }
  }
  int64_t end_of_mine = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int64_t other = __shfl_up_sync(~0u, end_of_mine, distance);
    if (lane >= distance) end_of_mine += other;
  }
  rows = __reduce_max_sync(~0u, rows);
  if (lane == 31) {
    warp_sums[warp] = end_of_mine;
    warp_rows[warp] = rows;
  }
  __syncthreads();
  int64_t total = 0;
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) end_of_mine += warp_sums[i];
    total += warp_sums[i];
    rows = max(rows, warp_rows[i]);
  }

  const int64_t stride = PieceFloats(min(rows, kTileRows), arguments.head_dim);
  int64_t count =
      min(max(total / (kMinShare / kUnit), int64_t{1}), int64_t{shares.count});
  int64_t room = 0;
  if (shares.arrivals != nullptr && rows > 0) {
    room = Divide(shares.piece_floats, 2 * stride * arguments.num_kv_heads);
  }
  const bool split = count > 1 && room > 1;
  if (split) count = min(count, room);
  const Division division = Division::Of(total, static_cast<int>(count));
  const int64_t at = share < count ? division.Begin(share) : total;
  if (threadIdx.x == 0) {
    state->share = share;
    state->kv_head = kv_head;
    state->split = split;
    state->stride = stride;
    state->division = division;
    state->at = at;
    state->end = share < count ? division.Begin(share + 1) : total;
  }
  // Only the thread whose sequences contain unit `at` continues.
  const int64_t begin = end_of_mine - sum;
  if (begin <= at && at < end_of_mine) {
    int s = first;
    ShortWork work = LoadShortWork<kUnit>(arguments, s, begin);
    while (at >= work.End()) {
      work = LoadShortWork<kUnit>(arguments, ++s, work.End());
    }
    state->work = work;
  }
  __syncthreads();
}

// Sets the destination of a piece of the tile [begin, end). The tile's first
// piece is the last of its share; its other pieces are the first of theirs.
__device__ inline void PlacePiece(const Shares& shares, const ShareState& state,
                                  int64_t begin, int64_t end, Piece* piece) {
  const bool ends = end <= state.end, begins = begin >= state.at;
  const int first = begins ? state.share : state.division.ShareOf(begin);
  const int last = ends ? state.share : state.division.ShareOf(end - 1);
  float* base = shares.pieces +
                2 * state.stride *
                    (int64_t{1} * state.kv_head * state.division.count + first);
  piece->first_sums = base + state.stride;
  piece->other_sums = base + 2 * state.stride;
  piece->piece_stride = 2 * state.stride;
  const int index = state.share - first;
  piece->sums = index == 0
                    ? piece->first_sums
                    : piece->other_sums + (index - 1) * piece->piece_stride;
  piece->num_pieces = last - first + 1;
  piece->arrivals = shares.arrivals + state.kv_head * shares.count + first;
}

// Takes the next piece of a share; called by one thread. Returns false if there
// is none.
template <int kUnit>
__device__ inline bool NextPiece(const Arguments& arguments,
                                 const Shares& shares, ShareState* state,
                                 Piece* piece) {
  while (state->at < state->end) {
    ShortWork& work = state->work;
    while (state->at >= work.End()) {
      work =
          LoadShortWork<kUnit>(arguments, work.sequence.index + 1, work.End());
    }
    const int row_tile =
        work.row_tiles == 1
            ? 0
            : static_cast<int>(Divide(state->at - work.begin, work.kv_units));
    const int64_t begin = work.begin + int64_t{1} * row_tile * work.kv_units;
    const int64_t end = begin + work.kv_units;
    const int64_t at = state->at;
    // Without splits, a tile belongs to the share in which it begins.
    const int64_t stop = state->split ? min(end, state->end) : end;
    const bool is_mine = state->split || at == begin;
    if (is_mine) {
      piece->sequence = work.sequence;
      piece->first_row = row_tile * kTileRows;
      piece->num_rows =
          min(work.sequence.q_len * arguments.group_size - piece->first_row,
              kTileRows);
      piece->kv_begin = work.kv_begin + static_cast<int>(at - begin);
      piece->kv_end = work.kv_begin + static_cast<int>(stop - begin);
      piece->sums = nullptr;
      if (at != begin || stop != end) {
        PlacePiece(shares, *state, begin, end, piece);
      }
    }
    state->at = stop;
    if (is_mine) return true;
  }
  return false;
}

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_WORK_CUH_
