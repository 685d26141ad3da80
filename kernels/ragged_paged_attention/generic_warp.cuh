// What one warp does with a tile of keys and values: the products on the tensor
// cores, and the online softmax (Milakov and Gimelshein, 2018).
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_WARP_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_WARP_CUH_

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/generic_shape.cuh"

namespace torch_xla_ext::ragged {

// The warp's rows of a tile, and what is known of their positions.
struct WarpRows {
  int position[2];   // of this lane's rows, lane / 4 and 8 further
  int min_position;  // of the tile's rows
  int max_position;
  float power[2];  // what this lane's rows of queries are to be multiplied by
};

template <typename Shape, typename Warps>
class WarpAttention {
 public:
  static constexpr int kTokens = Shape::kTileTokens / Warps::kTokenWarps;
  static constexpr int kDims = Shape::kHeadDim / Warps::kDimWarps;
  static constexpr int kSteps = Shape::kHeadDim / 16;

  // `query` is in shared memory and of the warp's first row, of which it keeps
  // a copy in registers if there is room.
  __device__ WarpAttention(const Arguments& arguments, const WarpRows& rows,
                           uint32_t query)
      : arguments_(arguments), rows_(rows), query_(query) {
    const float scale = arguments.logit_scale * kLog2e;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factor_[i] =
          (arguments.soft_cap > 0 ? 2 * scale / arguments.soft_cap : scale) *
          (Shape::kWiden ? rows.power[i] : 1.0f);
    }
  }

  __device__ void LoadQuery() {
    if constexpr (kQueryInRegisters) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        LoadQueryStep(step, query_registers_[step]);
      }
    }
  }

  // Adds the warp's tokens, of which the first is `first` of the tile, and
  // `begin` of the context. Bit i of valid[j] says whether token 16 j + i of
  // the tile takes part.
  __device__ void Attend(uint32_t keys, uint32_t values, int first, int begin,
                         int first_dim, const uint16_t* valid) {
    float s[kTokens / 8][4] = {};
    MultiplyKeys(keys, first, s);

    // From here on, logits are to the base 2.
    const bool has_soft_cap = arguments_.soft_cap > 0;
    const float cap = arguments_.soft_cap * kLog2e;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = has_soft_cap ? SoftCap(s[n][i], factor_[i / 2], cap)
                               : s[n][i] * factor_[i / 2];
      }
    }
    Mask(begin, valid + first / 16, s);
    Softmax(s);

#pragma unroll
    for (int k = 0; k < kTokens / 16; ++k) {
      const uint32_t a[4] = {Pack<Math>(s[2 * k][0], s[2 * k][1]),
                             Pack<Math>(s[2 * k][2], s[2 * k][3]),
                             Pack<Math>(s[2 * k + 1][0], s[2 * k + 1][1]),
                             Pack<Math>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
      for (int pair = 0; pair < kDims / 8 / Fragments::kTiles; ++pair) {
        Fragments value;
        value.Load(values, first + k * 16,
                   first_dim / 8 / Fragments::kTiles + pair);
#pragma unroll
        for (int n = 0; n < Fragments::kTiles; ++n) {
          MultiplyAdd<Math>(out_[pair * Fragments::kTiles + n], a, value.b[n]);
        }
      }
    }
  }

  // Leaves the warp's sums, of 16 rows, and each row's maximum and sum of
  // weights.
  __device__ void Store(int first_dim, float* sums, float2* stats) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = sum_[i];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = lane / 4 + i * 8;
      if (lane % 4 == 0 && first_dim == 0) {
        stats[row] = make_float2(max_[i], sum);
      }
#pragma unroll
      for (int n = 0; n < kDims / 8; n += 2) {
        Fragments::StoreSums(sums + row * Shape::kSumRow + first_dim + n * 8,
                             out_[n][2 * i], out_[n][2 * i + 1],
                             out_[n + 1][2 * i], out_[n + 1][2 * i + 1]);
      }
    }
  }

 private:
  using Math = typename Shape::Math;
  using Fragments = ValueFragments<Shape>;
  static constexpr bool kQueryInRegisters =
      4 * kSteps + kDims / 2 + kTokens / 2 <= 144;

  __device__ void LoadQueryStep(int step, uint32_t (&a)[4]) const {
    const int lane = threadIdx.x % 32;
    LoadMatrices(a, query_ + ChunkOffset<Shape::kQueryBytes>(
                                 lane % 16, step * 2 + lane / 16));
  }

  __device__ void MultiplyKeys(uint32_t keys, int first,
                               float (&s)[kTokens / 8][4]) {
    constexpr int kPairSteps = KeyFragments<Shape>::kSteps;
#pragma unroll
    for (int pair = 0; pair < kSteps / kPairSteps; ++pair) {
      uint32_t a[kPairSteps][4];
#pragma unroll
      for (int step = 0; step < kPairSteps; ++step) {
        if constexpr (kQueryInRegisters) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            a[step][i] = query_registers_[pair * kPairSteps + step][i];
          }
        } else {
          LoadQueryStep(pair * kPairSteps + step, a[step]);
        }
      }
#pragma unroll
      for (int n = 0; n < kTokens / 16; ++n) {
        KeyFragments<Shape> key;
        key.Load(keys, first + n * 16, pair);
#pragma unroll
        for (int step = 0; step < kPairSteps; ++step) {
          MultiplyAdd<Math>(s[2 * n], a[step], key.b[step][0]);
          MultiplyAdd<Math>(s[2 * n + 1], a[step], key.b[step][1]);
        }
      }
    }
  }

  __device__ void Mask(int begin, const uint16_t* valid,
                       float (&s)[kTokens / 8][4]) const {
    const int window = arguments_.sliding_window;
    bool masked = begin + kTokens - 1 > rows_.min_position ||
                  begin <= rows_.max_position - window;
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) masked |= valid[i] != 0xffff;
    if (!masked) return;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      const int bits = valid[n / 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = n * 8 + threadIdx.x % 4 * 2 + i % 2;
        const int distance = rows_.position[i / 2] - begin - column;
        if (distance < 0 || distance >= window || !(bits >> column % 16 & 1)) {
          s[n][i] = -INFINITY;
        }
      }
    }
  }

  // Makes weights of logits.
  __device__ void Softmax(float (&s)[kTokens / 8][4]) {
    float max[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float row = -INFINITY;
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
        row = fmaxf(row, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
      }
      row = fmaxf(row, __shfl_xor_sync(~0u, row, 1));
      row = fmaxf(row, __shfl_xor_sync(~0u, row, 2));
      // A maximum is replaced only by one that is 2^8 times higher: factors of
      // up to 2^8 do no harm, and what there is is seldom rescaled.
      max[i] = row > max_[i] + 8 ? row : max_[i];
    }
    if (__any_sync(~0u, max[0] != max_[0] || max[1] != max_[1])) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float rescale = max[i] == max_[i] ? 1.0f : Exp2(max_[i] - max[i]);
        max_[i] = max[i];
        sum_[i] *= rescale;
#pragma unroll
        for (int n = 0; n < kDims / 8; ++n) {
          out_[n][2 * i] *= rescale;
          out_[n][2 * i + 1] *= rescale;
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Of a row without a visible token as yet, all terms are zero.
      const float base = max_[i] == -INFINITY ? 0 : max_[i];
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
        s[n][2 * i] = Exp2(s[n][2 * i] - base);
        s[n][2 * i + 1] = Exp2(s[n][2 * i + 1] - base);
        sum_[i] += s[n][2 * i] + s[n][2 * i + 1];
      }
    }
  }

  const Arguments& arguments_;
  const WarpRows& rows_;
  const uint32_t query_;
  uint32_t query_registers_[kQueryInRegisters ? kSteps : 1][4];
  float factor_[2];
  float max_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0, 0};  // of this lane's tokens alone
  float out_[kDims / 8][4] = {};
};

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_WARP_CUH_
