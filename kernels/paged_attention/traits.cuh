// The constants of AttendKernel for each type of cache and head_dim.
#ifndef KERNELS_PAGED_ATTENTION_TRAITS_CUH_
#define KERNELS_PAGED_ATTENTION_TRAITS_CUH_

#include <type_traits>

#include "kernels/common/ptx.cuh"

namespace torch_xla_ext::paged_attention {

// The maximum number of units that a warp has in shared memory.
inline constexpr int kMaxStages = 4;
// The thread blocks of a cluster, as many as every GPU with clusters supports.
inline constexpr int kClusterBlocks = 8;
// Stands for a missing row or block number of a cache.
inline constexpr uint32_t kNoRow = 0xffffffff;

// The largest number up to `limit` that divides `n`.
constexpr int LargestDivisor(int n, int limit) {
  while (n % limit != 0) --limit;
  return limit;
}

// The constants of a kernel for caches of type C: __nv_bfloat16, __half, either
// of both (Bf16OrF16), or __nv_fp8_e4m3.
template <typename C, int kHeadDim_, int kHeadTiles_, int kMinUnit = 16>
struct AttendTraits {
  using Cache = C;
  // F8E4M3FN is widened to F16, exactly.
  static constexpr bool kWiden = std::is_same_v<C, __nv_fp8_e4m3>;
  using Math = std::conditional_t<kWiden, __half, C>;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kHeadTiles = kHeadTiles_;  // tiles of 8 heads
  static constexpr int kHeads = 8 * kHeadTiles;
  static constexpr int kDimTiles = kHeadDim / 16;
  static constexpr int kRowBytes = kHeadDim * sizeof(C);
  static constexpr int kChunks = kRowBytes / 16;  // chunks of 16 bytes per row
  // Tokens that a warp works on at a time; more if the rows are short.
  static constexpr int kUnit = kRowBytes <= 128 ? 32 : kMinUnit;
  static constexpr int kTokenTiles = kUnit / 16;
  static constexpr int kTileBytes = kUnit * kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;  // per warp, for K and V
  // 16×16 matrices of keys or values that a warp loads before it multiplies, to
  // hide the latency of the loads: as many as fit in registers.
  static constexpr int kLoads = kChunks / 2;  // loads per 16 tokens
  static constexpr int kRoom = 64 / (kHeadTiles * kDimTiles);
  static constexpr int kBatch = LargestDivisor(kLoads, kRoom);
  // The warps' results are added up for this many dimensions at a time. Rows of
  // floats are padded by 4 to avoid bank conflicts.
  static constexpr int kSumDims =
      kHeadTiles == 1 && kHeadDim % 64 == 0 ? 64 : 32;
  static constexpr int kSumRow = kSumDims + 4;
  // Per warp.
  static constexpr int kSumBytes = kHeads * kSumRow * sizeof(float);
  static_assert(kSumBytes % 128 == 0 && kTileBytes % 128 == 0);
  // The bytes of the units in the shared memory of a ClusterKernel block.
  static constexpr int kClusterBytes = 192 * 1024;

  // The position of chunk `chunk` of row `row` in a tile, permuted so that the
  // same chunk of 8 rows is in 8 different groups of 4 banks.
  __device__ static int Chunk(int row, int chunk) {
    constexpr int kLowBits = kChunks & -kChunks;
    constexpr int kSpan = kLowBits < 8 ? kLowBits : 8;
    return row * kChunks + (chunk ^ ((row / (8 / kSpan)) % kSpan));
  }
};

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_TRAITS_CUH_
