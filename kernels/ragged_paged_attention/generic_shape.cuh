// The constants of the generic kernel for each type of cache and head_dim, and
// the loads of keys and values from shared memory for the tensor cores.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_SHAPE_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_SHAPE_CUH_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/common/ptx.cuh"
#include "kernels/ragged_paged_attention/variants.cuh"
#include "kernels/ragged_paged_attention/workspace.h"

namespace torch_xla_ext::ragged {

inline constexpr int kWarps = 4;
inline constexpr int kGenericThreads = 32 * kWarps;

template <typename C, int kHeadDim_>
struct Shape {
  // F8E4M3FN is widened to F16, exactly, and the queries are converted to F16,
  // too.
  static constexpr bool kWiden = std::is_same_v<C, __nv_fp8_e4m3>;
  static constexpr bool kIsF16 = std::is_same_v<C, __half>;
  using Math = std::conditional_t<kWiden, __half, C>;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kQueryBytes = kHeadDim * 2;        // per row
  static constexpr int kRowBytes = kHeadDim * sizeof(C);  // per key or value
  static constexpr int kChunks = kRowBytes / 16;
  // At the end, the warps' sums reuse the memory of queries, keys and values.
  // Rows of floats are padded by 8 to avoid bank conflicts.
  static constexpr int kSumRow = kHeadDim + 8;
};

// The division of the work on a tile of kRows query rows among the warps: each
// has 16 kFragments rows, 1 / kTokenWarps of the tokens, and 1 / kDimWarps of
// the values' dimensions.
template <typename Shape_, int kFragments_, int kTokenWarps_, int kDimWarps_,
          int kTileTokens_>
struct Plan {
  using Shape = Shape_;
  static constexpr int kFragments = kFragments_;
  static constexpr int kTokenWarps = kTokenWarps_;
  static constexpr int kDimWarps = kDimWarps_;
  static constexpr int kWarpRows = 16 * kFragments;
  static constexpr int kRows = kWarpRows * kWarps / kTokenWarps / kDimWarps;
  static constexpr int kTileTokens = kTileTokens_;
  // Per tile of keys.
  static constexpr int kTileBytes = kTileTokens * Shape::kRowBytes;
  static constexpr int kQueryTileBytes = kRows * Shape::kQueryBytes;
  // The number of tiles of keys and values that are being copied or used: if
  // possible, so that two blocks fit into the 164 KB of an A100's
  // multiprocessor.
  static constexpr int kStages =
      std::clamp((80 * 1024 - kQueryTileBytes) / (2 * kTileBytes), 2, 4);
  static constexpr int kSharedBytes =
      std::max(kQueryTileBytes + kStages * 2 * kTileBytes,
               Shape::kSumRow * 4 * kTokenWarps * kRows);
  // Every GPU has 99 KB per block; static variables need some of it.
  static_assert(kSharedBytes <= 96 * 1024);
};

#ifdef __CUDA_ARCH__
inline constexpr int kArch = __CUDA_ARCH__;
#else
inline constexpr int kArch = 0;  // host code contains no plans
#endif

template <typename Shape>
struct Plans {
  static constexpr int kDim = Shape::kHeadDim;
  static constexpr int kTileTokens = Shape::kRowBytes <= 256 ? 64 : 32;
  // The plan with the most rows, if their sums fit into registers: each
  // fragment of keys and values is used twice.
  using Large = Plan<Shape, kDim <= 128 ? 2 : 1, 1, 1, kTileTokens>;
  using Middle = Plan<Shape, 1, 1, 1, kTileTokens>;
  // The plan for the rows of one warp, as in a decode step. The warps have
  // different tokens, and also different dimensions if the sums of all
  // dimensions would need too many registers.
  using Small = Plan<Shape, 1, kDim <= 128 ? 4 : 2, kDim <= 128 ? 1 : 2,
                     Shape::kRowBytes <= 128   ? 128
                     : Shape::kRowBytes <= 256 ? 64
                                               : 32>;
  // The work is divided in units of this many tokens.
  static constexpr int kUnit = Small::kTileTokens;
  static_assert(kUnit % kTileTokens == 0);
};

// The second factors of products with 32 bytes of 16 keys: 16 dimensions, or 2
// * 16 with F8E4M3FN; each factor has two groups of 8 keys.
//
// With F8E4M3FN, a lane gets four adjacent dimensions of a key. They are used
// as dimensions c, c + 1, c + 8 and c + 9 (see MultiplyAdd), and LoadQueryF8
// orders the dimensions of the queries in the same way.
template <typename Shape>
struct KeyFragments {
  static constexpr int kSteps = Shape::kWiden ? 2 : 1;
  uint32_t b[kSteps][2][2];

  __device__ void Load(uint32_t tile, int token, int pair) {
    const int lane = threadIdx.x % 32;
    uint32_t m[4];
    LoadMatrices(m, tile + ChunkOffset<Shape::kRowBytes>(
                               token + lane / 16 * 8 + lane % 8,
                               pair * 2 + lane / 8 % 2));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if constexpr (Shape::kWiden) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          b[step][n][0] = WidenF8Pair(m[n * 2 + step]);
          b[step][n][1] = WidenF8Pair(m[n * 2 + step] >> 16);
        }
      } else {
        b[0][n][0] = m[n * 2];
        b[0][n][1] = m[n * 2 + 1];
      }
    }
  }
};

// The second factors of products with 32 bytes of 16 values: two groups of 8
// dimensions, or four with F8E4M3FN.
//
// A transposed load of F8E4M3FN keeps pairs of elements together: the first
// group of 8 has the even ones of 16 dimensions, the second group the odd ones.
template <typename Shape>
struct ValueFragments {
  static constexpr int kTiles = Shape::kWiden ? 4 : 2;
  uint32_t b[kTiles][2];

  __device__ void Load(uint32_t tile, int token, int pair) {
    const int lane = threadIdx.x % 32;
    uint32_t m[4];
    LoadTransposed(m, tile + ChunkOffset<Shape::kRowBytes>(
                                 token + lane % 16, pair * 2 + lane / 16));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Shape::kWiden) {
        b[i / 2 * 2][i % 2] = WidenF8Pair(__byte_perm(m[i], 0, 0x4420));
        b[i / 2 * 2 + 1][i % 2] = WidenF8Pair(__byte_perm(m[i], 0, 0x4431));
      } else {
        b[i / 2][i % 2] = m[i];
      }
    }
  }

  // Stores a lane's sums of 16 dimensions, which are two products' results for
  // one row.
  __device__ static void StoreSums(float* row, float x0, float x1, float y0,
                                   float y1) {
    const int t = threadIdx.x % 4;
    if constexpr (Shape::kWiden) {
      *reinterpret_cast<float4*>(row + t * 4) = make_float4(x0, y0, x1, y1);
    } else {
      *reinterpret_cast<float2*>(row + t * 2) = make_float2(x0, x1);
      *reinterpret_cast<float2*>(row + 8 + t * 2) = make_float2(y0, y1);
    }
  }
};

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_GENERIC_SHAPE_CUH_
