// AttendKernel: attention of one query token to its sequence's cache.
//
// A warp works on `kUnit` tokens at a time, for all heads of a head block, with
// its own softmax (online, Milakov and Gimelshein 2018) and its own copies on
// their way to shared memory: the warps of a block meet only where a sequence
// ends (FlashDecoding, Dao et al. 2023, splits a context in the same manner).
// The products are computed transposed, K Q^T and V^T P^T, so that the tokens
// and dimensions fill the 16 rows of the tensor cores' matrices, and the few
// heads that share a kv head their 8 columns.
#ifndef KERNELS_PAGED_ATTENTION_ATTEND_CUH_
#define KERNELS_PAGED_ATTENTION_ATTEND_CUH_

#include <cmath>
#include <type_traits>

#include "kernels/paged_attention/partition.cuh"
#include "kernels/paged_attention/ptx.cuh"

namespace torch_xla_ext {

inline constexpr int kMaxStages = 4;
inline constexpr uint32_t kNoRow = 0xffffffff;

// The constants of a kernel for caches of type C.
template <typename C, int kHeadDim_, int kHeadTiles_>
struct AttendTraits {
  using Cache = C;
  // F8E4M3FN is widened to F16, exactly.
  static constexpr bool kWiden = std::is_same_v<C, __nv_fp8_e4m3>;
  using Math = std::conditional_t<kWiden, __half, C>;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kHeadTiles = kHeadTiles_;  // of 8 heads
  static constexpr int kHeads = 8 * kHeadTiles;
  static constexpr int kDimTiles = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim * sizeof(C);
  static constexpr int kChunks = kRowBytes / 16;  // of a row, of 16 bytes
  // Tokens that a warp works on at a time: short rows come in larger numbers.
  static constexpr int kUnit = kRowBytes <= 128 ? 32 : 16;
  static constexpr int kTokenTiles = kUnit / 16;
  static constexpr int kTileBytes = kUnit * kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;  // of a warp: K and V
  // The warps' results are added up over so many dimensions at a time. A row
  // of floats is 4 longer, against bank conflicts.
  static constexpr int kSumDims =
      kHeadTiles == 1 && kHeadDim % 64 == 0 ? 64 : 32;
  static constexpr int kSumRow = kSumDims + 4;
  static constexpr int kSumBytes = kHeads * kSumRow * sizeof(float);  // a warp
  static_assert(kSumBytes % 128 == 0 && kTileBytes % 128 == 0);

  // Where chunk `chunk` of row `row` lies in a tile: permuted so that the same
  // chunk of 8 rows lies in 8 different groups of 4 banks.
  __device__ static int Chunk(int row, int chunk) {
    constexpr int kLowBits = kChunks & -kChunks;
    constexpr int kSpan = kLowBits < 8 ? kLowBits : 8;
    return row * kChunks + (chunk ^ ((row / (8 / kSpan)) % kSpan));
  }
};

// What a warp's lanes hold of one sequence; of products' results see
// MultiplyAdd.
template <typename Traits>
struct WarpState {
  uint32_t query[Traits::kDimTiles][Traits::kHeadTiles][2];
  // V^T P^T: columns are heads, rows dimensions (see OutDim).
  float out[Traits::kDimTiles][Traits::kHeadTiles][4];
  // Of heads 2 * (lane % 4) and + 1 of each tile.
  float max[Traits::kHeadTiles][2];
  float sum[Traits::kHeadTiles][2];  // of this lane's tokens alone
  float scale[Traits::kHeadTiles][2];
  float slope[Traits::kHeadTiles][2];
};

// The dimension, in its tile of 16, of row lane / 4 + 8 * half of
// WarpState::out. A transposed load moves pairs of F8E4M3FN together.
template <typename Traits>
__device__ inline int OutDim(int lane, int half) {
  return Traits::kWiden ? lane / 4 * 2 + half : lane / 4 + half * 8;
}

// Reads the queries as the tensor cores' second factor: column lane / 4.
template <typename Traits>
__device__ inline void LoadQuery(const DecodeArgs& args, int seq, int head,
                                 int heads, WarpState<Traits>* state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int tile = 0; tile < Traits::kHeadTiles; ++tile) {
    const int column = tile * 8 + lane / 4;
    const bool there = column < heads;
    const int64_t row =
        (static_cast<int64_t>(seq) * args.num_heads + head + column) *
        Traits::kHeadDim;
    if constexpr (!Traits::kWiden) {
      const auto* query =
          static_cast<const typename Traits::Math*>(args.query) + row +
          lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < Traits::kDimTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          state->query[i][tile][half] =
              there ? *reinterpret_cast<const uint32_t*>(query + i * 16 +
                                                         half * 8)
                    : 0;
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) state->scale[tile][j] = args.logit_scale;
    } else {
      // Four neighbouring bytes of a key are loaded as columns c, c + 1, c + 8
      // and c + 9: the query's dimensions are permuted in the same way. BF16
      // may be out of F16's range, so a power of two is taken out of each head.
      float values[Traits::kDimTiles][4];
      float largest = 0;
#pragma unroll
      for (int i = 0; i < Traits::kDimTiles; ++i) {
        const int64_t at = row + i * 16 + lane % 4 * 4;
        uint2 bits = {0, 0};
        if (there) {
          bits = *reinterpret_cast<const uint2*>(
              static_cast<const uint16_t*>(args.query) + at);
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t pair = j == 0 ? bits.x : bits.y;
          const float2 value =
              args.query_is_bf16
                  ? __bfloat1622float2(
                        reinterpret_cast<const __nv_bfloat162&>(pair))
                  : __half22float2(reinterpret_cast<const __half2&>(pair));
          values[i][2 * j] = value.x;
          values[i][2 * j + 1] = value.y;
          largest = fmaxf(largest, fmaxf(fabsf(value.x), fabsf(value.y)));
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
      // 2^(exponent - 127) and its inverse, both normal numbers.
      const int exponent = min(max(__float_as_int(largest) >> 23, 1), 253);
      const float power = __int_as_float(exponent << 23);
      const float inverse = __int_as_float((254 - exponent) << 23);
#pragma unroll
      for (int i = 0; i < Traits::kDimTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          state->query[i][tile][half] = Pack<__half>(
              values[i][2 * half] * inverse, values[i][2 * half + 1] * inverse);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        state->scale[tile][j] =
            args.logit_scale *
            __shfl_sync(kAllLanes, power, (lane % 4 * 2 + j) * 4);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int h = tile * 8 + lane % 4 * 2 + j;
      state->slope[tile][j] =
          args.alibi_slopes != nullptr && h < heads
              ? args.alibi_slopes[head + h] * 1.44269504088896341f
              : 0;
      state->max[tile][j] = -INFINITY;
      state->sum[tile][j] = 0;
    }
#pragma unroll
    for (int i = 0; i < Traits::kDimTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) state->out[i][tile][j] = 0;
    }
  }
}

// The weight of a sum that is relative to `max`, in one that is relative to
// `total_max`. Where there was no token both may be -inf: the sum is 0 then.
__device__ inline float RelativeWeight(float max, float total_max) {
  return max == total_max ? 1.0f : Exp2(max - total_max);
}

// Soft cap and ALiBi. They are rare, and so have no kernels of their own.
template <typename Traits>
__device__ inline void Transform(
    const DecodeArgs& args, int distance, const WarpState<Traits>& state,
    float (&logits)[Traits::kTokenTiles][Traits::kHeadTiles][4]) {
#pragma unroll
  for (int tile = 0; tile < Traits::kTokenTiles; ++tile) {
#pragma unroll
    for (int h = 0; h < Traits::kHeadTiles; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int token = tile * 16 + j / 2 * 8 + threadIdx.x % 32 / 4;
        float& logit = logits[tile][h][j];
        if (args.soft_cap > 0) {
          logit = args.soft_cap * tanhf(logit / args.soft_cap);
        }
        logit += state.slope[h][j % 2] * static_cast<float>(distance + token);
      }
    }
  }
}

// Adds the tokens of one unit: keys and values are in shared memory, token i
// takes part if bit i of `mask` is set, and `distance` is the first one's
// position less the query's.
template <typename Traits>
__device__ inline void AttendUnit(const DecodeArgs& args, uint32_t keys,
                                  uint32_t mask, int distance,
                                  WarpState<Traits>* state) {
  constexpr int kHeadTiles = Traits::kHeadTiles;
  constexpr int kTokenTiles = Traits::kTokenTiles;
  using Math = typename Traits::Math;
  const int lane = threadIdx.x % 32;
  const uint32_t values = keys + Traits::kTileBytes;

  // Rows are tokens, columns heads. Two sums each, so that a product need not
  // wait for the one before it.
  float logits[kTokenTiles][kHeadTiles][4] = {};
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    const int row = tile * 16 + lane % 16;
    float odd[kHeadTiles][4] = {};
#pragma unroll
    for (int i = 0; i < Traits::kChunks; i += 2) {
      uint32_t key[4];
      LoadMatrices(key, keys + Traits::Chunk(row, i + lane / 16) * 16);
      if constexpr (Traits::kWiden) {
        const uint32_t even_key[4] = {WidenF8Pair(key[0]), WidenF8Pair(key[1]),
                                      WidenF8Pair(key[0] >> 16),
                                      WidenF8Pair(key[1] >> 16)};
        const uint32_t odd_key[4] = {WidenF8Pair(key[2]), WidenF8Pair(key[3]),
                                     WidenF8Pair(key[2] >> 16),
                                     WidenF8Pair(key[3] >> 16)};
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          MultiplyAdd<Math>(logits[tile][h], even_key, state->query[i][h]);
          MultiplyAdd<Math>(odd[h], odd_key, state->query[i + 1][h]);
        }
      } else {
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          MultiplyAdd<Math>(i % 4 == 0 ? logits[tile][h] : odd[h], key,
                            state->query[i / 2][h]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        logits[tile][h][j] =
            (logits[tile][h][j] + odd[h][j]) * state->scale[h][j % 2];
      }
    }
  }
  if (args.soft_cap > 0 || args.alibi_slopes != nullptr) {
    Transform<Traits>(args, distance, *state, logits);
  }

  float max[kHeadTiles][2];
  bool larger = false;
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float column_max = state->max[h][j];
#pragma unroll
      for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& logit = logits[tile][h][2 * half + j];
          const int token = tile * 16 + half * 8 + lane / 4;
          if ((mask >> token & 1) == 0) logit = -INFINITY;
          column_max = fmaxf(column_max, logit);
        }
      }
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        column_max =
            fmaxf(column_max, __shfl_xor_sync(kAllLanes, column_max, lanes));
      }
      max[h][j] = column_max;
      larger |= column_max > state->max[h][j];
    }
  }
  if (__any_sync(kAllLanes, larger)) {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float factor = RelativeWeight(state->max[h][j], max[h][j]);
        state->max[h][j] = max[h][j];
        state->sum[h][j] *= factor;
#pragma unroll
        for (int i = 0; i < Traits::kDimTiles; ++i) {
          state->out[i][h][j] *= factor;
          state->out[i][h][2 + j] *= factor;
        }
      }
    }
  }

  // Rows are tokens, columns heads: the second factor of the next product.
  uint32_t weights[kTokenTiles][kHeadTiles][2];
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float weight[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          // A column without any token yet has -inf less -inf: 0, not NaN.
          const float base = max[h][j] == -INFINITY ? 0 : max[h][j];
          weight[j] = Exp2(logits[tile][h][2 * half + j] - base);
          state->sum[h][j] += weight[j];
        }
        weights[tile][h][half] = Transpose(Pack<Math>(weight[0], weight[1]));
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    if constexpr (Traits::kWiden) {
      const int row = tile * 16 + lane % 16;
#pragma unroll
      for (int i = 0; i < Traits::kChunks; i += 2) {
        uint32_t value[4];
        LoadTransposed(value, values + Traits::Chunk(row, i + lane / 16) * 16);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          // Each register has two tokens' pairs of dimensions.
          uint32_t wide[4];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t pairs = value[2 * j + half];
            wide[2 * half] = WidenF8Pair(__byte_perm(pairs, 0, 0x4420));
            wide[2 * half + 1] = WidenF8Pair(__byte_perm(pairs, 0, 0x4431));
          }
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) {
            MultiplyAdd<Math>(state->out[i + j][h], wide, weights[tile][h]);
          }
        }
      }
    } else {
      const int row = tile * 16 + lane / 16 * 8 + lane % 8;
#pragma unroll
      for (int i = 0; i < Traits::kDimTiles; ++i) {
        uint32_t value[4];
        LoadTransposed(value,
                       values + Traits::Chunk(row, 2 * i + lane / 8 % 2) * 16);
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          MultiplyAdd<Math>(state->out[i][h], value, weights[tile][h]);
        }
      }
    }
  }
}

// Brings a warp's units to shared memory, ahead of their use.
template <typename Traits>
class Loader {
 public:
  // The warp's units are part.begin + warp and every blockDim.x / 32 th from
  // there on. `shared` is the warp's memory, and `masks` of kMaxStages words.
  __device__ Loader(const DecodeArgs& args, const Part& part, int kv_head,
                    uint32_t shared, uint32_t* masks)
      : args_(args),
        keys_(static_cast<const char*>(args.key_cache) +
              kv_head * Traits::kRowBytes),
        values_(static_cast<const char*>(args.value_cache) +
                kv_head * Traits::kRowBytes),
        row_bytes_(args.num_kv_heads * Traits::kRowBytes),
        shared_(shared),
        masks_(masks),
        at_(part.begin + threadIdx.x / 32),
        end_(part.end) {
    if (at_ < end_) {
      place_ = PlaceOf<Traits::kUnit>(args, part.seq, part.seq_begin);
    }
    FindBlock();
  }

  // Starts the copies of the next unit to `stage`, or none if there is no more.
  __device__ void Load(int stage) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = block_ < args_.num_blocks
                             ? block_ * args_.block_size.divisor + row_in_block_
                             : kNoRow;
    const uint32_t mask = __ballot_sync(kAllLanes, row != kNoRow);
    if (lane == 0) masks_[stage] = mask;
    if (at_ < end_) {
      const uint32_t keys = shared_ + stage * Traits::kStageBytes;
#pragma unroll
      for (int i = 0; i < Traits::kTileBytes / 16 / 32; ++i) {
        const int index = i * 32 + lane;
        const int token = index / Traits::kChunks;
        const int chunk = index % Traits::kChunks;
        const uint32_t source_row = __shfl_sync(kAllLanes, row, token);
        const bool read = source_row != kNoRow;
        const uint64_t offset =
            static_cast<uint64_t>(read ? source_row : 0) * row_bytes_ +
            chunk * 16;
        const uint32_t to = keys + Traits::Chunk(token, chunk) * 16;
        CopyAsync16(to, keys_ + offset, read);
        CopyAsync16(to + Traits::kTileBytes, values_ + offset, read);
      }
      at_ += blockDim.x / 32;
      FindBlock();
    }
    CommitCopies();
  }

 private:
  // Reads the number of the block of this lane's token of the unit at at_, a
  // unit before it is used; kNoRow if the token takes no part.
  __device__ void FindBlock() {
    block_ = kNoRow;
    if (at_ >= end_) return;
    while (at_ >= place_.end) {
      place_ = PlaceOf<Traits::kUnit>(args_, place_.seq + 1, place_.end);
    }
    const Units& units = place_.units;
    const int lane = threadIdx.x % 32;
    const int token = (units.first + at_ - place_.begin) * Traits::kUnit + lane;
    if (lane < Traits::kUnit && token < units.context &&
        token >= units.context - args_.sliding_window) {
      const uint32_t index = args_.block_size.Divide(token);
      row_in_block_ = token - index * args_.block_size.divisor;
      block_ = args_.block_tables[static_cast<int64_t>(place_.seq) *
                                      args_.max_blocks +
                                  index];
    }
  }

  const DecodeArgs& args_;
  const char* const keys_;
  const char* const values_;
  const uint32_t row_bytes_;
  const uint32_t shared_;
  uint32_t* const masks_;
  int at_;
  const int end_;
  Place place_;
  uint32_t block_;
  uint32_t row_in_block_ = 0;
};

// Waits for the oldest of `stages` - 1 stages.
__device__ inline void WaitForStage(int stages) {
  static_assert(kMaxStages == 4);
  if (stages == 2) {
    WaitForCopies<0>();
  } else if (stages == 3) {
    WaitForCopies<1>();
  } else {
    WaitForCopies<2>();
  }
}

// Brings memory to the L2 cache. Called by a whole block.
__device__ inline void PrefetchBytes(const char* begin, int size) {
  for (int at = threadIdx.x * 128; at < size; at += blockDim.x * 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(begin + at));
  }
}

// What the warps tell each other of a head.
struct WarpStats {
  float max[kMaxWarps][16];
  float sum[kMaxWarps][16];
};

__device__ inline void Store(const DecodeArgs& args, int64_t index,
                             float4 value) {
  const uint2 bits = args.query_is_bf16
                         ? uint2{Pack<__nv_bfloat16>(value.x, value.y),
                                 Pack<__nv_bfloat16>(value.z, value.w)}
                         : uint2{Pack<__half>(value.x, value.y),
                                 Pack<__half>(value.z, value.w)};
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(args.out) + index) = bits;
}

// Adds up the warps' results, and writes them to `out`, or to the workspace at
// `slot` if that is not negative. Called by the whole block.
template <typename Traits>
__device__ inline void StoreSum(const DecodeArgs& args, int seq, int head,
                                int heads, int64_t slot, float* sums,
                                WarpStats* stats, WarpState<Traits>* state) {
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < Traits::kHeadTiles; ++h) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = state->sum[h][j];
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, lanes);
      }
      if (lane < 4) {
        stats->max[warp][h * 8 + lane * 2 + j] = state->max[h][j];
        stats->sum[warp][h * 8 + lane * 2 + j] = sum;
      }
    }
  }
  constexpr int kWarpSums = Traits::kHeads * Traits::kSumRow;
#pragma unroll
  for (int begin = 0; begin < Traits::kHeadDim; begin += Traits::kSumDims) {
#pragma unroll
    for (int i = 0; i < Traits::kSumDims / 16; ++i) {
#pragma unroll
      for (int h = 0; h < Traits::kHeadTiles; ++h) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int column = h * 8 + lane % 4 * 2 + j % 2;
          sums[warp * kWarpSums + column * Traits::kSumRow + i * 16 +
               OutDim<Traits>(lane, j / 2)] = state->out[begin / 16 + i][h][j];
        }
      }
    }
    __syncthreads();
    constexpr int kVectors = Traits::kSumDims / 4;
    // Not unrolled: this runs seldom, and its code has to be fetched.
#pragma unroll 1
    for (int i = threadIdx.x; i < heads * kVectors; i += blockDim.x) {
      const int column = i / kVectors, dim = i % kVectors * 4;
      float max = -INFINITY;
#pragma unroll 1
      for (int w = 0; w < warps; ++w) max = fmaxf(max, stats->max[w][column]);
      float sum = 0;
      float4 total = {0, 0, 0, 0};
#pragma unroll 1
      for (int w = 0; w < warps; ++w) {
        const float weight = RelativeWeight(stats->max[w][column], max);
        const float4 part = *reinterpret_cast<const float4*>(
            sums + w * kWarpSums + column * Traits::kSumRow + dim);
        sum += weight * stats->sum[w][column];
        total.x += weight * part.x;
        total.y += weight * part.y;
        total.z += weight * part.z;
        total.w += weight * part.w;
      }
      if (slot < 0) {
        const float factor = sum == 0 ? 0 : args.value_scale / sum;
        const int64_t row =
            static_cast<int64_t>(seq) * args.num_heads + head + column;
        Store(args, row * Traits::kHeadDim + begin + dim,
              {total.x * factor, total.y * factor, total.z * factor,
               total.w * factor});
      } else {
        const int64_t row = slot * args.rows + column;
        *reinterpret_cast<float4*>(args.partial_out + row * Traits::kHeadDim +
                                   begin + dim) = total;
        if (begin + dim == 0) args.partial_stats[row] = {max, sum};
      }
    }
    __syncthreads();
  }
}

// Grid: [head blocks of all kv heads, parts]. Neighbouring thread blocks read
// neighbouring heads of the same tokens.
template <typename Traits>
__global__ void __launch_bounds__(32 * kMaxWarps)
    AttendKernel(const __grid_constant__ DecodeArgs args) {
  // Rows are written as whole lines of 128 bytes; copies to elsewhere are
  // split.
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ WarpStats stats;
  __shared__ uint32_t masks[kMaxWarps][kMaxStages];
  AllowNextKernelToStart();
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int kv_head = blockIdx.x / args.head_blocks;
  const int first_row = blockIdx.x % args.head_blocks * args.rows;
  const int group = args.num_heads / args.num_kv_heads;
  const int head = kv_head * group + first_row;
  const int heads = min(args.rows, group - first_row);
  const int64_t slot =
      static_cast<int64_t>(blockIdx.x) * args.parts + blockIdx.y;

  const Part part = FindPart<Traits::kUnit>(args, blockIdx.y);
  if (part.begin >= part.end) return;

  float* const sums = reinterpret_cast<float*>(memory);
  const uint32_t shared = static_cast<uint32_t>(
      __cvta_generic_to_shared(memory + warps * Traits::kSumBytes +
                               warp * args.stages * Traits::kStageBytes));
  Loader<Traits> loader(args, part, kv_head, shared, masks[warp]);
#pragma unroll 1
  for (int stage = 0; stage < args.stages - 1; ++stage) loader.Load(stage);
  int stage = 0, free_stage = args.stages - 1;

  WarpState<Traits> state;
  int at = part.begin + warp;
  Place place = PlaceOf<Traits::kUnit>(args, part.seq, part.seq_begin);
  while (true) {
    LoadQuery<Traits>(args, place.seq, head, heads, &state);
    if (place.end < part.end) {
      const int64_t next =
          static_cast<int64_t>(place.seq + 1) * args.num_heads + head;
      PrefetchBytes(
          static_cast<const char*>(args.query) + next * Traits::kHeadDim * 2,
          heads * Traits::kHeadDim * 2);
    }
    const int piece_end = min(place.end, part.end);
    for (; at < piece_end; at += warps) {
      WaitForStage(args.stages);
      __syncwarp();  // all lanes' copies are there, and free_stage was read
      loader.Load(free_stage);
      const int unit = place.units.first + at - place.begin;
      AttendUnit<Traits>(
          args, shared + stage * Traits::kStageBytes, masks[warp][stage],
          unit * Traits::kUnit - (place.units.context - 1), &state);
      free_stage = stage;
      stage = stage + 1 == args.stages ? 0 : stage + 1;
    }
    const bool begins = place.begin >= part.begin;
    const bool ends = place.end <= part.end;
    StoreSum<Traits>(args, place.seq, head, heads,
                     begins && ends ? -1 : 2 * slot + (begins ? 1 : 0), sums,
                     &stats, &state);
    if (place.end >= part.end) break;
    place = PlaceOf<Traits::kUnit>(args, place.seq + 1, place.end);
  }
  WaitForCopies<0>();
}

}  // namespace torch_xla_ext

#endif  // KERNELS_PAGED_ATTENTION_ATTEND_CUH_
