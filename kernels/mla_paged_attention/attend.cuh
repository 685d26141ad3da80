// AttendKernel: one thread block attends to a part of a context, for some
// heads.
//
// A block works on kRows heads of a sequence, and copies its part of the
// context to shared memory in tiles of kTokens rows, each of which is both key
// and value. Its warps form a grid. A row of warps has 16 heads; each of its
// warps computes the logits for some of the tokens, and the weighted sums of
// values for some of the dimensions (FlashAttention-2, Dao, 2023; FlashMLA,
// DeepSeek-AI, 2025, divides the dimensions in the same way). In between, the
// logits go through shared memory, and every warp computes the softmax of its
// heads itself.
#ifndef KERNELS_MLA_PAGED_ATTENTION_ATTEND_CUH_
#define KERNELS_MLA_PAGED_ATTENTION_ATTEND_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/ptx.cuh"
#include "kernels/common/softmax.cuh"
#include "kernels/mla_paged_attention/mla_paged_attention.h"

namespace torch_xla_ext::mla {

struct Arguments {
  const void* query;
  const void* kv_cache;
  const int32_t* block_tables;
  const int32_t* context_lens;
  void* out;
  float* lse;  // or null

  bool is_bf16;  // query, out, and a 16-bit cache; else F16
  int num_seqs;
  int num_heads;
  int num_blocks;
  int block_size;
  int max_blocks;
  int max_tokens;
  float logit_scale;  // scale * kv_scale * log2(e): the softmax is of base 2
  float kv_scale;

  // Each context, unless it is short, is split into `parts` of equal size, in
  // tiles of tile_tokens tokens. If there are several parts, their results are:
  int tile_tokens;
  int parts;
  float* partial_out;     // [num_seqs, num_heads, parts, kValueDim]
  float2* partial_stats;  // [num_seqs, num_heads, parts]
};

inline constexpr int kTokens = 32;      // per tile of AttendKernel
inline constexpr int kSm90Tokens = 64;  // per tile of the kernel for Hopper
inline constexpr int kRowBytes = kKeyDim * 2;
inline constexpr int kTileBytes = kTokens * kRowBytes;

// The constants of a kernel for queries of type T and a cache of type C. A
// cache of F8E4M3FN is converted to T in shared memory, exactly.
template <typename T_, typename C, int kRows_>
struct Shape {
  using T = T_;
  static constexpr bool kConverts = std::is_same_v<C, __nv_fp8_e4m3>;
  static constexpr int kRows = kRows_;
  static constexpr int kRowWarps = kRows / 16;
  static constexpr int kColumnWarps = kRowWarps == 1 ? 4 : 8 / kRowWarps;
  static constexpr int kThreads = 32 * kRowWarps * kColumnWarps;
  static constexpr int kKeyTokens = kTokens / kColumnWarps;  // of a warp
  static constexpr int kDims = kValueDim / kColumnWarps;     // of a warp
  static constexpr int kStages = 2;  // tiles that are being copied or used
  static constexpr int kCacheRowBytes = kKeyDim * sizeof(C);
  static constexpr int kStageBytes = kTokens * kCacheRowBytes;
  // Rows of logits are padded by 8 to avoid bank conflicts.
  static constexpr int kLogitRow = kTokens + 8;
  static_assert(kKeyTokens == 8 || kKeyTokens == 16);

  struct Memory {
    alignas(128) uint8_t query[kRows * kRowBytes];
    alignas(128) uint8_t tile[kConverts ? kTileBytes : 16];
    alignas(128) uint8_t stages[kStages][kStageBytes];
    float logits[kRows][kLogitRow];
    // The cache rows of the tiles' tokens; -1 for tokens that are masked.
    int64_t cache_rows[kStages + 1][kTokens];
    uint32_t valid[kStages + 1];
  };
};

// The kernel for Hopper (attend_sm90.cu), for caches of the query's dtype.
cudaError_t LaunchSm90Kernel(cudaStream_t stream, const Arguments& arguments);

__device__ inline int ContextOf(const Arguments& arguments, int seq) {
  return min(max(arguments.context_lens[seq], 0), arguments.max_tokens);
}

// The number of tiles in a part of a context of `tiles` tiles.
__device__ inline int PartTiles(const Arguments& arguments, int tiles) {
  const int size = (tiles + arguments.parts - 1) / arguments.parts;
  return max(size, static_cast<int>(kMinPartTokens) / arguments.tile_tokens);
}

__device__ inline int TilesOf(const Arguments& arguments, int context) {
  return (context + arguments.tile_tokens - 1) / arguments.tile_tokens;
}

// Writes the row of `lse` if `dim` is 0; returns the factor for the sums of
// values.
__device__ inline float Finish(const Arguments& arguments, int64_t row, int dim,
                               float max, float sum) {
  if (arguments.lse != nullptr && dim == 0) {
    arguments.lse[row] = LogSum(max, sum);
  }
  return sum == 0 ? 0 : arguments.kv_scale / sum;
}

// Copies the tiles [begin, end) of a sequence to shared memory; called by all
// threads of a block.
template <typename Shape>
class Loader {
 public:
  using Memory = typename Shape::Memory;

  __device__ Loader(const Arguments& arguments, int seq, int context, int begin,
                    int end, Memory& memory)
      : arguments_(arguments),
        table_(arguments.block_tables +
               int64_t{1} * seq * arguments.max_blocks),
        context_(context),
        end_(end),
        memory_(memory),
        next_(begin) {
    for (int i = 0; i < Shape::kStages; ++i) {
      FillTable(FetchBlock(next_ + i), next_ + i, i);
    }
    next_block_ = FetchBlock(next_ + Shape::kStages);
    __syncthreads();
    for (int i = 0; i < Shape::kStages - 1; ++i) CopyNext();
  }

  // Waits for the next tile; the previous one must no longer be in use.
  __device__ void Wait() {
    WaitForCopies<Shape::kStages - 2>();
    __syncthreads();
  }

  // Starts the next copies. Call it after Wait.
  __device__ void GoOn() {
    CopyNext();
    // next_ is the first tile without a table.
    FillTable(next_block_, next_, table_slot_);
    next_block_ = FetchBlock(next_ + 1);
  }

 private:
  static constexpr int kChunks = Shape::kCacheRowBytes / 16;

  // The block number for this thread's token of a tile, or -1 if there is none.
  // The load is slow, so it is issued one tile ahead.
  __device__ int FetchBlock(int tile) const {
    const int token = tile * kTokens + threadIdx.x;
    if (threadIdx.x >= kTokens || tile >= end_ || token >= context_) return -1;
    return __ldg(table_ + token / arguments_.block_size);
  }

  __device__ void FillTable(int block, int tile, int slot) {
    if (threadIdx.x >= kTokens) return;
    const int token = tile * kTokens + threadIdx.x;
    const bool there = block >= 0 && block < arguments_.num_blocks;
    const int64_t row = there ? int64_t{1} * block * arguments_.block_size +
                                    token % arguments_.block_size
                              : -1;
    memory_.cache_rows[slot][threadIdx.x] = row;
    const uint32_t valid = __ballot_sync(~0u, row >= 0);
    if (threadIdx.x == 0) memory_.valid[slot] = valid;
  }

  // Starts a group of copies: of the next tile, or an empty group after the
  // last. Masked tokens become zeros, because their memory may hold NaN.
  __device__ void CopyNext() {
    if (next_ < end_) {
      const uint32_t to = SharedAddress(memory_.stages[stage_]);
      const char* cache = static_cast<const char*>(arguments_.kv_cache);
#pragma unroll 3
      for (int index = threadIdx.x; index < kTokens * kChunks;
           index += Shape::kThreads) {
        const int token = index / kChunks, chunk = index % kChunks;
        const int64_t row = memory_.cache_rows[table_slot_][token];
        const char* from =
            cache + (row < 0 ? 0 : row) * Shape::kCacheRowBytes + chunk * 16;
        const uint32_t at =
            Shape::kConverts ? index * 16
                             : ChunkOffset<Shape::kCacheRowBytes>(token, chunk);
        CopyAsync16(to + at, from, row >= 0);
      }
    }
    CommitCopies();
    ++next_;
    if (++stage_ == Shape::kStages) stage_ = 0;
    if (++table_slot_ == Shape::kStages + 1) table_slot_ = 0;
  }

  const Arguments& arguments_;
  const int32_t* const table_;
  const int context_, end_;
  Memory& memory_;
  int next_;  // the tile to be copied next
  int next_block_;
  int stage_ = 0, table_slot_ = 0;
};

// Copies the queries of the heads [head, head + heads), and zeros for the
// remaining rows.
template <typename Shape>
__device__ inline void LoadQuery(const Arguments& arguments, int seq, int head,
                                 int heads, uint8_t* shared) {
  constexpr int kChunks = kRowBytes / 16;
  const char* query =
      static_cast<const char*>(arguments.query) +
      (int64_t{1} * seq * arguments.num_heads + head) * kRowBytes;
  for (int i = threadIdx.x; i < Shape::kRows * kChunks; i += Shape::kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    CopyAsync16(SharedAddress(shared) + ChunkOffset<kRowBytes>(row, chunk),
                row < heads ? query + i * 16 : query, row < heads);
  }
}

// Converts a tile from F8E4M3FN to T; called by all threads.
template <typename Shape>
__device__ inline void Convert(const uint8_t* from, uint8_t* tile) {
  using T = typename Shape::T;
  constexpr int kChunks = kKeyDim / 8;  // of a row, of 8 elements
  for (int i = threadIdx.x; i < kTokens * kChunks; i += Shape::kThreads) {
    const uint2 bytes = reinterpret_cast<const uint2*>(from)[i];
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t pair = (j < 2 ? bytes.x : bytes.y) >> j % 2 * 16;
      const uint32_t halves = WidenF8Pair(pair & 0xffff);
      const float2 value =
          __half22float2(reinterpret_cast<const __half2&>(halves));
      words[j] = std::is_same_v<T, __half> ? halves : Pack<T>(value.x, value.y);
    }
    *reinterpret_cast<uint4*>(
        tile + ChunkOffset<kRowBytes>(i / kChunks, i % kChunks)) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// A warp's work on the tiles: 16 rows, of which a lane has rows lane / 4 and
// lane / 4 + 8.
template <typename Shape>
class WarpAttention {
 public:
  using T = typename Shape::T;

  __device__ WarpAttention(float scale, bool is_bf16,
                           typename Shape::Memory& memory)
      : scale_(scale),
        is_bf16_(is_bf16),
        memory_(memory),
        row_(threadIdx.x / 32 / Shape::kColumnWarps * 16),
        column_warp_(threadIdx.x / 32 % Shape::kColumnWarps) {}

  // Computes the warp's share of the logits, and stores it in shared memory.
  __device__ void MultiplyKeys(uint32_t tile) {
    constexpr int kTiles = Shape::kKeyTokens / 8;
    const int lane = threadIdx.x % 32;
    const int first = column_warp_ * Shape::kKeyTokens;
    float s[2][kTiles][4] = {};
#pragma unroll 6
    for (int pair = 0; pair < kKeyDim / 32; ++pair) {
      uint32_t a[2][4], b[kTiles][4];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        LoadMatrices(a[step], SharedAddress(memory_.query) +
                                  ChunkOffset<kRowBytes>(
                                      row_ + lane % 16,
                                      pair * 4 + step * 2 + lane / 16));
      }
      // 32 dimensions of 8 keys.
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        LoadMatrices(b[n],
                     tile + ChunkOffset<kRowBytes>(first + n * 8 + lane % 8,
                                                   pair * 4 + lane / 8));
      }
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const uint32_t key[2] = {b[n][step * 2], b[n][step * 2 + 1]};
          MultiplyAdd<T>(s[step][n], a[step], key, is_bf16_);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* to = &memory_.logits[row_ + lane / 4 + half * 8]
                                   [first + n * 8 + lane % 4 * 2];
        *reinterpret_cast<float2*>(to) =
            make_float2(s[0][n][half * 2] + s[1][n][half * 2],
                        s[0][n][half * 2 + 1] + s[1][n][half * 2 + 1]);
      }
    }
  }

  // Computes the softmax of all logits of the warp's rows, and adds the values;
  // token i is masked unless bit i of `valid` is set.
  __device__ void AddValues(uint32_t tile, uint32_t valid) {
    constexpr int kSteps = kTokens / 16;
    const int lane = threadIdx.x % 32;
    // In the layout of the tensor cores' first operand (MultiplyAdd).
    float logits[kSteps][4][2];
    float max[2] = {max_[0], max_[1]};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = k * 16 + i / 2 * 8 + lane % 4 * 2;
        const float2 pair = *reinterpret_cast<const float2*>(
            &memory_.logits[row_ + lane / 4 + i % 2 * 8][token]);
        logits[k][i][0] = valid >> token & 1 ? pair.x * scale_ : -INFINITY;
        logits[k][i][1] = valid >> token & 2 ? pair.y * scale_ : -INFINITY;
        max[i % 2] = fmaxf(max[i % 2], fmaxf(logits[k][i][0], logits[k][i][1]));
      }
    }
    bool changed = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 1));
      max[r] = fmaxf(max[r], __shfl_xor_sync(~0u, max[r], 2));
      changed |= max[r] != max_[r];
    }
    if (__any_sync(~0u, changed)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float factor = RelativeWeight(max_[r], max[r]);
        max_[r] = max[r];
        sum_[r] *= factor;
#pragma unroll
        for (int n = 0; n < Shape::kDims / 8; ++n) {
          out_[n][2 * r] *= factor;
          out_[n][2 * r + 1] *= factor;
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // All weights of a row are zero until it has seen a token.
        const float base = max[i % 2] == -INFINITY ? 0 : max[i % 2];
        const float x = Exp2(logits[k][i][0] - base);
        const float y = Exp2(logits[k][i][1] - base);
        sum_[i % 2] += x + y;
        a[i] = Pack<T>(x, y, is_bf16_);
      }
#pragma unroll
      for (int pair = 0; pair < Shape::kDims / 16; ++pair) {
        uint32_t m[4];
        const int chunk = column_warp_ * (Shape::kDims / 8) + pair * 2;
        LoadTransposed(m, tile + ChunkOffset<kRowBytes>(k * 16 + lane % 16,
                                                        chunk + lane / 16));
        const uint32_t first[2] = {m[0], m[1]}, second[2] = {m[2], m[3]};
        MultiplyAdd<T>(out_[2 * pair], a, first, is_bf16_);
        MultiplyAdd<T>(out_[2 * pair + 1], a, second, is_bf16_);
      }
    }
  }

  // Calls store(row, dim, max, sum, x, y) for each pair of elements of the
  // sums.
  template <typename Store>
  __device__ void ForEach(const Store& store) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
#pragma unroll
      for (int n = 0; n < Shape::kDims / 8; ++n) {
        store(row_ + lane / 4 + r * 8,
              column_warp_ * Shape::kDims + n * 8 + lane % 4 * 2, max_[r], sum,
              out_[n][2 * r], out_[n][2 * r + 1]);
      }
    }
  }

 private:
  const float scale_;
  const bool is_bf16_;
  typename Shape::Memory& memory_;
  const int row_, column_warp_;
  float max_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0, 0};  // over this lane's tokens only
  float out_[Shape::kDims / 8][4] = {};
};

// Grid: [tiles of kRows heads, parts, sequences]. Neighbouring blocks read the
// same tokens.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    AttendKernel(const __grid_constant__ Arguments arguments) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& memory = *reinterpret_cast<typename Shape::Memory*>(shared);
  const int head = blockIdx.x * Shape::kRows;
  const int heads = min(arguments.num_heads - head, Shape::kRows);
  const int part = blockIdx.y, seq = blockIdx.z;
  const int context = ContextOf(arguments, seq);
  const int tiles = TilesOf(arguments, context);
  const int part_tiles = PartTiles(arguments, tiles);
  const int begin = part * part_tiles;
  const int end = min(begin + part_tiles, tiles);
  // For an empty context, the first part writes zeros.
  if (begin >= end && part > 0) return;

  LoadQuery<Shape>(arguments, seq, head, heads, memory.query);
  Loader<Shape> loader(arguments, seq, context, begin, end, memory);
  WarpAttention<Shape> attention(arguments.logit_scale, arguments.is_bf16,
                                 memory);
  int stage = 0, slot = 0;
  for (int n = begin; n < end; ++n) {
    loader.Wait();
    const uint32_t valid = memory.valid[slot];
    uint32_t tile = SharedAddress(memory.stages[stage]);
    if constexpr (Shape::kConverts) {
      Convert<Shape>(memory.stages[stage], memory.tile);
      tile = SharedAddress(memory.tile);
      __syncthreads();
    }
    loader.GoOn();
    attention.MultiplyKeys(tile);
    __syncthreads();
    attention.AddValues(tile, valid);
    if (++stage == Shape::kStages) stage = 0;
    if (++slot == Shape::kStages + 1) slot = 0;
  }
  WaitForCopies<0>();

  const bool is_all = tiles <= part_tiles;
  attention.ForEach([&](int row, int dim, float max, float sum, float x,
                        float y) {
    if (row >= heads) return;
    const int64_t at = int64_t{1} * seq * arguments.num_heads + head + row;
    if (is_all) {
      const float factor = Finish(arguments, at, dim, max, sum);
      reinterpret_cast<uint32_t*>(arguments.out)[(at * kValueDim + dim) / 2] =
          Pack<Bf16OrF16>(x * factor, y * factor, arguments.is_bf16);
    } else {
      const int64_t slot = at * arguments.parts + part;
      *reinterpret_cast<float2*>(arguments.partial_out + slot * kValueDim +
                                 dim) = make_float2(x, y);
      if (dim == 0) arguments.partial_stats[slot] = make_float2(max, sum);
    }
  });
}

}  // namespace torch_xla_ext::mla

#endif  // KERNELS_MLA_PAGED_ATTENTION_ATTEND_CUH_
