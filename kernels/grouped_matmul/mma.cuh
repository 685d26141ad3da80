// The kernel for 16-bit elements, of compute capability 8.0 and later.
#ifndef KERNELS_GROUPED_MATMUL_MMA_CUH_
#define KERNELS_GROUPED_MATMUL_MMA_CUH_

#include "kernels/common/ptx.cuh"
#include "kernels/common/wgmma.cuh"
#include "kernels/grouped_matmul/groups.cuh"

namespace torch_xla_ext::grouped_matmul::mma {

inline constexpr int kRows = 64, kColumns = 128, kDepth = 64;  // of a tile
inline constexpr int kWarpRows = 32, kWarpColumns = 64;
inline constexpr int kThreads = 128;  // 2 x 2 warps
inline constexpr int kStages = 3;
inline constexpr int kABytes = kRows * kDepth * 2;
inline constexpr int kBBytes = kDepth * kColumns * 2;
inline constexpr int kStageBytes = kABytes + kBBytes;

// Bytes of shared memory: the stages, then the segments.
inline int SharedBytes(int groups) {
  return kStages * kStageBytes +
         NumSegmentEntries(groups) * static_cast<int>(sizeof(int2));
}

// Starts copying a matrix of kHeight x kWidth elements, with zeros outside of
// the limits. Columns and strides are multiples of 8.
template <int kHeight, int kWidth, typename T>
__device__ inline void Load(uint32_t to, const T* from, int64_t stride, int row,
                            int row_end, int column, int column_end) {
  constexpr int kChunks = kWidth / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kHeight * kChunks; i += kThreads) {
    const int r = i / kChunks, chunk = i % kChunks;
    const bool exists = row + r < row_end && column + chunk * 8 < column_end;
    const int64_t offset = (row + r) * stride + column + chunk * 8;
    CopyAsync16(to + ChunkOffset<kWidth * 2>(r, chunk),
                from + (exists ? offset : 0), exists);
  }
}

template <typename T, Product kProduct>
__global__ void __launch_bounds__(kThreads)
    Kernel(const __grid_constant__ Arguments arguments) {
  constexpr bool kAIsDepthFirst = kProduct == Product::kOuter;
  constexpr bool kBIsDepthFirst = kProduct != Product::kLinear;
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t stages = SharedAddress(shared);
  Tiles<kProduct, kRows, kColumns> tiles{
      arguments, reinterpret_cast<int2*>(shared + kStages * kStageBytes)};
  if (threadIdx.x < 32) tiles.Prepare();
  __syncthreads();
  const int64_t m = arguments.m, n = arguments.n, k = arguments.k;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / 2 * kWarpRows;
  const int warp_column = warp % 2 * kWarpColumns;
  const int count = tiles.Count();
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const Tile tile = tiles.Get(index);
    const T* const a_data = static_cast<const T*>(arguments.a);
    const T* b_data = static_cast<const T*>(arguments.b);
    if (kProduct != Product::kOuter) b_data += tile.group * k * n;
    const int steps = CeilDiv(tile.k_end - tile.k_begin, kDepth);
    const auto load = [&](int step) {
      if (step < steps) {
        const uint32_t a = stages + step % kStages * kStageBytes;
        const uint32_t b = a + kABytes;
        const int depth = tile.k_begin + step * kDepth;
        if constexpr (kAIsDepthFirst) {
          Load<kDepth, kRows>(a, a_data, m, depth, tile.k_end, tile.row,
                              tile.row_end);
        } else {
          Load<kRows, kDepth>(a, a_data, k, tile.row, tile.row_end, depth,
                              tile.k_end);
        }
        if constexpr (kBIsDepthFirst) {
          Load<kDepth, kColumns>(b, b_data, n, depth, tile.k_end, tile.column,
                                 arguments.n);
        } else {
          Load<kColumns, kDepth>(b, b_data, k, tile.column, arguments.n, depth,
                                 tile.k_end);
        }
      }
      CommitCopies();
    };
    float sums[kWarpRows / 16][kWarpColumns / 8][4] = {};
    __syncthreads();  // the previous tile has been read
    for (int i = 0; i < kStages - 1; ++i) load(i);
    for (int step = 0; step < steps; ++step) {
      WaitForCopies<kStages - 2>();
      __syncthreads();
      load(step + kStages - 1);
      const uint32_t a = stages + step % kStages * kStageBytes;
      const uint32_t b = a + kABytes;
#pragma unroll
      for (int d = 0; d < kDepth; d += 16) {
        uint32_t left[kWarpRows / 16][4];
#pragma unroll
        for (int i = 0; i < kWarpRows / 16; ++i) {
          const int row = warp_row + i * 16;
          if constexpr (kAIsDepthFirst) {
            LoadTransposed(left[i], a + ChunkOffset<kRows * 2>(
                                            d + lane / 16 * 8 + lane % 8,
                                            row / 8 + lane / 8 % 2));
          } else {
            LoadMatrices(left[i], a + ChunkOffset<kDepth * 2>(
                                          row + lane % 16, d / 8 + lane / 16));
          }
        }
#pragma unroll
        for (int j = 0; j < kWarpColumns / 16; ++j) {
          const int column = warp_column + j * 16;
          uint32_t right[4];  // two for each 8 columns
          if constexpr (kBIsDepthFirst) {
            LoadTransposed(
                right, b + ChunkOffset<kColumns * 2>(d + lane % 16,
                                                     column / 8 + lane / 16));
          } else {
            LoadMatrices(right, b + ChunkOffset<kDepth * 2>(
                                        column + lane / 16 * 8 + lane % 8,
                                        d / 8 + lane / 8 % 2));
          }
#pragma unroll
          for (int i = 0; i < kWarpRows / 16; ++i) {
            MultiplyAdd<T>(sums[i][2 * j], left[i], {right[0], right[1]});
            MultiplyAdd<T>(sums[i][2 * j + 1], left[i], {right[2], right[3]});
          }
        }
      }
    }
    WaitForCopies<0>();
    T* out = static_cast<T*>(arguments.out);
    if (kProduct == Product::kOuter) out += tile.group * m * n;
#pragma unroll
    for (int i = 0; i < kWarpRows / 16; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = tile.row + warp_row + i * 16 + r * 8 + lane / 4;
#pragma unroll
        for (int j = 0; j < kWarpColumns / 8; j += 4) {
          const auto word = [&](int w) {
            const float* sum = sums[i][j + w] + 2 * r;
            return Pack<T>(sum[0], sum[1]);
          };
          const uint4 packet =
              TransposeQuad(word(0), word(1), word(2), word(3));
          const int column = tile.column + warp_column + j * 8 + lane % 4 * 8;
          if (row < tile.row_end && column < arguments.n) {
            *reinterpret_cast<uint4*>(out + row * n + column) = packet;
          }
        }
      }
    }
  }
}

}  // namespace torch_xla_ext::grouped_matmul::mma

#endif  // KERNELS_GROUPED_MATMUL_MMA_CUH_
