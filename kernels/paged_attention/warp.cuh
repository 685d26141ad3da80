// One warp's work on a unit of tokens, for all heads of a head block: the
// online softmax (Milakov and Gimelshein 2018).
//
// The products are computed transposed, K Q^T and V^T P^T, so that the tokens
// and dimensions fill the 16 rows of the tensor cores' matrices, and the few
// heads that share a kv head their 8 columns.
#ifndef KERNELS_PAGED_ATTENTION_WARP_CUH_
#define KERNELS_PAGED_ATTENTION_WARP_CUH_

#include <cmath>

#include "kernels/common/softmax.cuh"
#include "kernels/paged_attention/partition.cuh"
#include "kernels/paged_attention/traits.cuh"

namespace torch_xla_ext::paged_attention {

// The state of a warp's lanes for one sequence; see MultiplyAdd for the layout
// of products.
template <typename Traits>
struct WarpState {
  uint32_t query[Traits::kDimTiles][Traits::kHeadTiles][2];
  // V^T P^T: columns are heads, rows dimensions (see OutDim).
  float out[Traits::kDimTiles][Traits::kHeadTiles][4];
  // Values for heads 2 * (lane % 4) and + 1 of each tile.
  float max[Traits::kHeadTiles][2];
  float sum[Traits::kHeadTiles][2];  // over this lane's tokens only
  float scale[Traits::kHeadTiles][2];
  float slope[Traits::kHeadTiles][2];
};

// The dimension, within its tile of 16, of row lane / 4 + 8 * half of
// WarpState::out. A transposed load of F8E4M3FN keeps pairs of elements
// together.
template <typename Traits>
__device__ inline int OutDim(int lane, int half) {
  return Traits::kWiden ? lane / 4 * 2 + half : lane / 4 + half * 8;
}

// The rows of a head block: `count` heads of a sequence's query. Other types
// for `Rows` may have rows of several queries.
struct HeadRows {
  int64_t first;  // seq * num_heads + head
  int head;
  int count;

  // The index of a row in the query and in `out`.
  __device__ int64_t IndexOf(int row) const { return first + row; }
  __device__ int HeadOf(int row) const { return head + row; }
  // The position of the query that `distance` below refers to.
  __device__ int PositionIn(int context) const { return context - 1; }
  // Whether a token comes after a row's query. `distance` is that of the token.
  static constexpr bool kHides = false;
  __device__ bool Hides(int row, int distance) const { return false; }
};

__device__ inline HeadRows RowsOf(const DecodeArgs& args, int seq, int head,
                                  int count) {
  return {static_cast<int64_t>(seq) * args.num_heads + head, head, count};
}

// Reads the queries as the tensor cores' second operand: column lane / 4.
template <typename Traits, typename Rows>
__device__ inline void LoadQuery(const DecodeArgs& args, const Rows& rows,
                                 WarpState<Traits>* state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int tile = 0; tile < Traits::kHeadTiles; ++tile) {
    const int column = tile * 8 + lane / 4;
    const bool there = column < rows.count;
    const int64_t row = rows.IndexOf(column) * Traits::kHeadDim;
    if constexpr (!Traits::kWiden) {
      const auto* query =
          static_cast<const uint16_t*>(args.query) + row + lane % 4 * 2;
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
      // Four adjacent bytes of a key are loaded as columns c, c + 1, c + 8 and
      // c + 9, so the query's dimensions are permuted in the same way. BF16 may
      // be out of F16's range, so a power of two is factored out of each head.
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
      state->slope[tile][j] = args.alibi_slopes != nullptr && h < rows.count
                                  ? args.alibi_slopes[rows.HeadOf(h)] * kLog2e
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

// Applies the soft cap and ALiBi. Both are rare, so there are no kernels
// without them.
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

// Adds the tokens of one unit. Keys and values are in shared memory, token i is
// masked unless bit i of `mask` is set, and `distance` is the first token's
// position minus the query's.
template <typename Traits, typename Rows>
__device__ inline void AttendUnit(const DecodeArgs& args, const Rows& rows,
                                  uint32_t keys, uint32_t mask, int distance,
                                  WarpState<Traits>* state) {
  constexpr int kHeadTiles = Traits::kHeadTiles;
  constexpr int kTokenTiles = Traits::kTokenTiles;
  using Math = typename Traits::Math;
  const int lane = threadIdx.x % 32;
  const uint32_t values = keys + Traits::kTileBytes;
  const bool is_bf16 = args.query_is_bf16;

  // Rows are tokens, columns are heads. There are two sums each, so that a
  // product need not wait for the previous one.
  float logits[kTokenTiles][kHeadTiles][4] = {};
#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    const int row = tile * 16 + lane % 16;
    float odd[kHeadTiles][4] = {};
#pragma unroll
    for (int begin = 0; begin < Traits::kLoads; begin += Traits::kBatch) {
      uint32_t batch[Traits::kBatch][4];
#pragma unroll
      for (int k = 0; k < Traits::kBatch; ++k) {
        const int chunk = 2 * (begin + k) + lane / 16;
        LoadMatrices(batch[k], keys + Traits::Chunk(row, chunk) * 16);
      }
#pragma unroll
      for (int k = 0; k < Traits::kBatch; ++k) {
        const uint32_t(&key)[4] = batch[k];
        const int i = begin + k;
        if constexpr (Traits::kWiden) {
          const uint32_t even_key[4] = {
              WidenF8Pair(key[0]), WidenF8Pair(key[1]),
              WidenF8Pair(key[0] >> 16), WidenF8Pair(key[1] >> 16)};
          const uint32_t odd_key[4] = {WidenF8Pair(key[2]), WidenF8Pair(key[3]),
                                       WidenF8Pair(key[2] >> 16),
                                       WidenF8Pair(key[3] >> 16)};
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) {
            MultiplyAdd<Math>(logits[tile][h], even_key, state->query[2 * i][h],
                              is_bf16);
            MultiplyAdd<Math>(odd[h], odd_key, state->query[2 * i + 1][h],
                              is_bf16);
          }
        } else {
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) {
            MultiplyAdd<Math>(i % 2 == 0 ? logits[tile][h] : odd[h], key,
                              state->query[i][h], is_bf16);
          }
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
  if constexpr (Rows::kHides) {
    if (distance + Traits::kUnit > 1) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = h * 8 + lane % 4 * 2 + j % 2;
#pragma unroll
          for (int tile = 0; tile < kTokenTiles; ++tile) {
            const int token = tile * 16 + j / 2 * 8 + lane / 4;
            if (rows.Hides(row, distance + token)) {
              logits[tile][h][j] = -INFINITY;
            }
          }
        }
      }
    }
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

  // Rows are tokens, columns are heads: the second factor of the next product.
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
          // 0 for a column without tokens so far, because -inf - -inf is NaN.
          const float base = max[h][j] == -INFINITY ? 0 : max[h][j];
          weight[j] = Exp2(logits[tile][h][2 * half + j] - base);
          state->sum[h][j] += weight[j];
        }
        weights[tile][h][half] =
            Transpose(Pack<Math>(weight[0], weight[1], is_bf16));
      }
    }
  }

#pragma unroll
  for (int tile = 0; tile < kTokenTiles; ++tile) {
    // With F8E4M3FN, a register has pairs of dimensions of two tokens.
    const int row =
        tile * 16 + (Traits::kWiden ? lane % 16 : lane / 16 * 8 + lane % 8);
    const int column = Traits::kWiden ? lane / 16 : lane / 8 % 2;
#pragma unroll
    for (int begin = 0; begin < Traits::kLoads; begin += Traits::kBatch) {
      uint32_t batch[Traits::kBatch][4];
#pragma unroll
      for (int k = 0; k < Traits::kBatch; ++k) {
        const int chunk = 2 * (begin + k) + column;
        LoadTransposed(batch[k], values + Traits::Chunk(row, chunk) * 16);
      }
#pragma unroll
      for (int k = 0; k < Traits::kBatch; ++k) {
        const uint32_t(&value)[4] = batch[k];
        const int i = begin + k;
        if constexpr (Traits::kWiden) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            uint32_t wide[4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const uint32_t pairs = value[2 * j + half];
              wide[2 * half] = WidenF8Pair(__byte_perm(pairs, 0, 0x4420));
              wide[2 * half + 1] = WidenF8Pair(__byte_perm(pairs, 0, 0x4431));
            }
#pragma unroll
            for (int h = 0; h < kHeadTiles; ++h) {
              MultiplyAdd<Math>(state->out[2 * i + j][h], wide,
                                weights[tile][h], is_bf16);
            }
          }
        } else {
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) {
            MultiplyAdd<Math>(state->out[i][h], value, weights[tile][h],
                              is_bf16);
          }
        }
      }
    }
  }
}

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_WARP_CUH_
