// One warp's work on a tile of keys and values: the products on the tensor
// cores, and the online softmax (Milakov and Gimelshein, 2018).
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_WARP_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_WARP_CUH_

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/generic_shape.cuh"

namespace torch_xla_ext::ragged {

// The warp's rows of a tile, and their positions.
template <int kFragments>
struct WarpRows {
  // The positions of this lane's rows, 16 f + lane / 4 and that plus 8.
  // first_new and first_token are the first new token's position and its row in
  // q.
  int position[kFragments][2];
  int first_new;
  int first_token;
  float power[kFragments][2];  // factors by which the queries were divided
  int min_position;            // of the last token that a row of the tile sees
  int max_position;
};

template <typename Plan>
class WarpAttention {
 public:
  using Shape = typename Plan::Shape;
  static constexpr int kFragments = Plan::kFragments;
  static constexpr int kTokens = Plan::kTileTokens / Plan::kTokenWarps;
  static constexpr int kDims = Shape::kHeadDim / Plan::kDimWarps;
  static constexpr int kSteps = Shape::kHeadDim / 16;

  // `query`, in shared memory, is the query of the warp's first row. The warp
  // keeps a copy of its queries in registers if there is room.
  __device__ WarpAttention(const Arguments& arguments,
                           const WarpRows<kFragments>& rows, uint32_t query)
      : arguments_(arguments), rows_(rows), query_(query) {
    const float scale = arguments.logit_scale * kLog2e;
    const float factor =
        arguments.soft_cap > 0 ? 2 * scale / arguments.soft_cap : scale;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        factor_[f][i] = Shape::kWiden ? factor * rows.power[f][i] : factor;
        max_[f][i] = -INFINITY;
        sum_[f][i] = 0;
      }
    }
  }

  __device__ void LoadQuery() {
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          LoadQueryStep(f, step, query_registers_[step][f]);
        }
      }
    }
  }

  // Adds the warp's tokens; the first of them is token `first` of the tile, and
  // token `begin` of the context. Token 16 j + i of the tile is masked unless
  // bit i of valid[j] is set.
  __device__ void Attend(uint32_t keys, uint32_t values, int first, int begin,
                         int first_dim, const uint16_t* valid) {
    float s[kFragments][kTokens / 8][4] = {};
    MultiplyKeys(keys, first, s);

    Scale(s);
    if (NeedsMask(begin, valid + first / 16)) {
      Mask(begin, valid + first / 16, s);
    }
    Softmax(s);

#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      uint32_t a[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[f][i] = Pack<Math>(s[f][2 * k + i / 2][i % 2 * 2],
                               s[f][2 * k + i / 2][i % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int pair = 0; pair < kDims / 8 / Fragments::kTiles; ++pair) {
        Fragments value;
        value.Load(values, first + k * 16,
                   first_dim / 8 / Fragments::kTiles + pair);
#pragma unroll
        for (int n = 0; n < Fragments::kTiles; ++n) {
#pragma unroll
          for (int f = 0; f < kFragments; ++f) {
            MultiplyAdd<Math>(out_[f][pair * Fragments::kTiles + n], a[f],
                              value.b[n]);
          }
        }
      }
    }
  }

  // Stores the sums of the warp's rows, and each row's maximum and sum of
  // weights.
  __device__ void Store(int first_dim, float* sums, float2* stats) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float sum = sum_[f][i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int row = f * 16 + lane / 4 + i * 8;
        if (lane % 4 == 0 && first_dim == 0) {
          stats[row] = make_float2(max_[f][i], sum);
        }
#pragma unroll
        for (int n = 0; n < kDims / 8; n += 2) {
          Fragments::StoreSums(sums + row * Shape::kSumRow + first_dim + n * 8,
                               out_[f][n][2 * i], out_[f][n][2 * i + 1],
                               out_[f][n + 1][2 * i],
                               out_[f][n + 1][2 * i + 1]);
        }
      }
    }
  }

 private:
  using Math = typename Shape::Math;
  using Fragments = ValueFragments<Shape>;
  static constexpr bool kQueryInRegisters =
      kFragments * (4 * kSteps + kDims / 2 + kTokens / 2) <= 144;

  __device__ void LoadQueryStep(int f, int step, uint32_t (&a)[4]) const {
    const int lane = threadIdx.x % 32;
    LoadMatrices(a, query_ + ChunkOffset<Shape::kQueryBytes>(
                                 f * 16 + lane % 16, step * 2 + lane / 16));
  }

  __device__ void MultiplyKeys(uint32_t keys, int first,
                               float (&s)[kFragments][kTokens / 8][4]) const {
    constexpr int kPairSteps = KeyFragments<Shape>::kSteps;
#pragma unroll
    for (int pair = 0; pair < kSteps / kPairSteps; ++pair) {
      uint32_t a[kPairSteps][kFragments][4];
#pragma unroll
      for (int step = 0; step < kPairSteps; ++step) {
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          if constexpr (kQueryInRegisters) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              a[step][f][i] = query_registers_[pair * kPairSteps + step][f][i];
            }
          } else {
            LoadQueryStep(f, pair * kPairSteps + step, a[step][f]);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kTokens / 16; ++n) {
        KeyFragments<Shape> key;
        key.Load(keys, first + n * 16, pair);
#pragma unroll
        for (int step = 0; step < kPairSteps; ++step) {
#pragma unroll
          for (int f = 0; f < kFragments; ++f) {
            MultiplyAdd<Math>(s[f][2 * n], a[step][f], key.b[step][0]);
            MultiplyAdd<Math>(s[f][2 * n + 1], a[step][f], key.b[step][1]);
          }
        }
      }
    }
  }

  // Whether any logits of the warp's tokens must be masked.
  __device__ bool NeedsMask(int begin, const uint16_t* valid) const {
    bool masked = begin + kTokens - 1 > rows_.min_position ||
                  begin <= rows_.max_position - arguments_.sliding_window ||
                  (arguments_.custom_mask != nullptr &&
                   begin + kTokens > rows_.first_new);
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) masked |= valid[i] != 0xffff;
    return masked;
  }

  // Converts products to logits to the base 2.
  __device__ void Scale(float (&s)[kFragments][kTokens / 8][4]) const {
    const float cap = arguments_.soft_cap * kLog2e;
    const auto for_each = [&](const auto& function) {
#pragma unroll
      for (int f = 0; f < kFragments; ++f) {
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            s[f][n][i] = function(s[f][n][i], factor_[f][i / 2]);
          }
        }
      }
    };
    if (cap > 0) {
      for_each([&](float x, float factor) { return SoftCap(x, factor, cap); });
    } else {
      for_each([](float x, float factor) { return x * factor; });
    }
  }

  __device__ void Mask(int begin, const uint16_t* valid,
                       float (&s)[kFragments][kTokens / 8][4]) const {
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      const int bits = valid[n / 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = n * 8 + threadIdx.x % 4 * 2 + i % 2;
        const bool is_valid = bits >> column % 16 & 1;
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          const int distance = rows_.position[f][i / 2] - begin - column;
          if ((distance < 0 && arguments_.causal) ||
              distance >= arguments_.sliding_window || !is_valid) {
            s[f][n][i] = -INFINITY;
          }
        }
      }
    }
    if (arguments_.custom_mask != nullptr) MaskNewTokens(begin, s);
  }

  // Masks the tokens that custom_mask hides.
  __device__ void MaskNewTokens(int begin,
                                float (&s)[kFragments][kTokens / 8][4]) const {
    const int bits = arguments_.mask_words * 32;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Rows after the sequence's rows are unused, but must not read out of
        // bounds.
        const int row =
            min(rows_.first_token + rows_.position[f][i] - rows_.first_new,
                arguments_.num_tokens - 1);
        const int32_t* mask =
            arguments_.custom_mask + int64_t{1} * row * arguments_.mask_words;
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int token =
                begin + n * 8 + threadIdx.x % 4 * 2 + j - rows_.first_new;
            if (token >= 0 && token < bits &&
                (__ldg(mask + token / 32) >> token % 32 & 1) == 0) {
              s[f][n][2 * i + j] = -INFINITY;
            }
          }
        }
      }
    }
  }

  // Converts logits to weights.
  __device__ void Softmax(float (&s)[kFragments][kTokens / 8][4]) {
    float max[kFragments][2];
    bool changed = false;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Two independent maxima, so that fewer comparisons wait for each
        // other.
        float row[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
          row[n % 2] =
              fmaxf(row[n % 2], fmaxf(s[f][n][2 * i], s[f][n][2 * i + 1]));
        }
        max[f][i] = fmaxf(row[0], row[1]);
      }
    }
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float row = max[f][i];
        row = fmaxf(row, __shfl_xor_sync(~0u, row, 1));
        row = fmaxf(row, __shfl_xor_sync(~0u, row, 2));
        // Keep the old maximum unless the new one is larger by a factor of 2^8.
        // Weights of up to 2^8 do no harm, and sums are seldom rescaled.
        max[f][i] = row > max_[f][i] + 8 ? row : max_[f][i];
        changed |= max[f][i] != max_[f][i];
      }
    }
    if (__any_sync(~0u, changed)) Rescale(max);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // All terms of a row are zero until it has seen a token.
        const float base = max_[f][i] == -INFINITY ? 0 : max_[f][i];
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
          s[f][n][2 * i] = Exp2(s[f][n][2 * i] - base);
          s[f][n][2 * i + 1] = Exp2(s[f][n][2 * i + 1] - base);
          sum_[f][i] += s[f][n][2 * i] + s[f][n][2 * i + 1];
        }
      }
    }
  }

  __device__ void Rescale(const float (&max)[kFragments][2]) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // Both may be -inf.
        const float factor =
            max[f][i] == max_[f][i] ? 1.0f : Exp2(max_[f][i] - max[f][i]);
        max_[f][i] = max[f][i];
        sum_[f][i] *= factor;
#pragma unroll
        for (int n = 0; n < kDims / 8; ++n) {
          out_[f][n][2 * i] *= factor;
          out_[f][n][2 * i + 1] *= factor;
        }
      }
    }
  }

  const Arguments& arguments_;
  const WarpRows<kFragments>& rows_;
  const uint32_t query_;
  uint32_t query_registers_[kQueryInRegisters ? kSteps : 1][kFragments][4];
  float factor_[kFragments][2];
  float max_[kFragments][2];
  float sum_[kFragments][2];  // over this lane's tokens only
  float out_[kFragments][kDims / 8][4] = {};
};

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_WARP_CUH_
