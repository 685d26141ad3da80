// The arguments of the kernels, and the tiles of groups of rows.
#ifndef KERNELS_GROUPED_MATMUL_GROUPS_CUH_
#define KERNELS_GROUPED_MATMUL_GROUPS_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/grouped_matmul/scales.h"

namespace torch_xla_ext::grouped_matmul {

enum class Product { kMatmul, kLinear, kOuter };

__host__ __device__ constexpr int CeilDiv(int a, int b) {
  return (a + b - 1) / b;
}

// The scales of XlaGpuScaledGroupedLinear (grouped_matmul.h).
struct Scales {
  const float* a;  // [m, blocks], or null if nothing has scales
  const float* b;  // [groups, columns, blocks]
  int n, columns, blocks;

  __device__ int Block(int depth) const {
    return blocks == 1 ? 0 : depth / kScaleBlock;
  }
  __device__ float OfA(int64_t row, int depth) const {
    return __ldg(&a[row * blocks + Block(depth)]);
  }
  __device__ float OfB(int64_t group, int column, int depth) const {
    const int of_column = columns == n   ? column
                          : columns == 1 ? 0
                                         : column / kScaleBlock;
    return __ldg(&b[(group * columns + of_column) * blocks + Block(depth)]);
  }
};

// Stands for the operands' dtype in XlaGpuMxGroupedLinear: a has the results'
// dtype, and b is MXFP4, which is converted.
struct Mx {};

// The product of a group is m x k by k x n. For kMatmul and kLinear, m is the
// group's number of rows, and `m` the number of all rows; for kOuter, the same
// holds for k and `k`.
struct Arguments {
  const void* a;  // [m, k]; for kOuter [k, m]
  const void* b;  // [groups, k, n]; kLinear: [groups, n, k]; kOuter: [k, n]
  const int2* ranges;  // [groups]
  void* out;           // [m, n]; for kOuter [groups, m, n]
  int m, n, k;
  int groups;
  bool is_bf16;  // dtype of the results, and of operands without scales
  Scales scales;
  const uint8_t* exponents;  // [groups, n, k / 32] if b is in MXFP4, else null
};

// Rows are divided into 2 * groups + 1 segments: those before group 0, those of
// group 0, those between it and group 1, …, those after the last group. Odd
// segments are groups. An entry is a segment's first row and first tile; one
// more entry at the end has the numbers of rows and tiles.
__host__ __device__ constexpr int NumSegmentEntries(int groups) {
  return 2 * groups + 2;
}

// Run by a warp: finds the segments. A segment has `tiles` tiles for every
// tile_rows rows or part of them. Each lane handles some of the groups.
__device__ inline void FindSegments(const int2* ranges, int groups, int rows,
                                    int tile_rows, int tiles, int2* segments) {
  const int lane = threadIdx.x % 32;
  const int part = CeilDiv(groups, 32);
  const int first = min(lane * part, groups);
  const int last = min(first + part, groups);
  const auto clip = [rows](int row) { return min(max(row, 0), rows); };

  int end = 0;  // the largest end of the preceding ranges
#pragma unroll 4
  for (int i = first; i < last; ++i) end = max(end, clip(__ldg(&ranges[i]).y));
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const int other = __shfl_up_sync(~0u, end, i);
    if (lane >= i) end = max(end, other);
  }
  int before = __shfl_up_sync(~0u, end, 1);
  if (lane == 0) before = 0;
  end = __shfl_sync(~0u, end, 31);

  // Calls visit(group, row, begin, end): `row` is the largest end of the
  // preceding ranges, [begin, end) are the group's rows.
  const auto each = [&](const auto& visit) {
#pragma unroll 4
    for (int i = first, row = before; i < last; ++i) {
      const int2 range = __ldg(&ranges[i]);
      const int range_end = max(clip(range.y), row);
      visit(i, row, min(max(clip(range.x), row), range_end), range_end);
      row = range_end;
    }
  };
  const auto tiles_of = [&](int count) {
    return CeilDiv(count, tile_rows) * tiles;
  };
  int tile = 0;
  each([&](int, int row, int begin, int range_end) {
    tile += tiles_of(begin - row) + tiles_of(range_end - begin);
  });
  const int own = tile;
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const int other = __shfl_up_sync(~0u, tile, i);
    if (lane >= i) tile += other;
  }
  if (lane == 31) {
    segments[2 * groups] = make_int2(end, tile);
    segments[2 * groups + 1] = make_int2(rows, tile + tiles_of(rows - end));
  }
  tile -= own;
  each([&](int i, int row, int begin, int range_end) {
    segments[2 * i] = make_int2(row, tile);
    tile += tiles_of(begin - row);
    segments[2 * i + 1] = make_int2(begin, tile);
    tile += tiles_of(range_end - begin);
  });
}

// The segment of a tile: the last one that does not begin after it.
__device__ inline int FindSegment(const int2* segments, int groups, int tile) {
  int low = 0, high = 2 * groups;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (segments[middle].y <= tile) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// FindSegment, run by a warp.
__device__ inline int FindSegmentByWarp(const int2* segments, int groups,
                                        int tile) {
  const int lane = threadIdx.x % 32;
  int low = 0, size = 2 * groups + 1;
  while (size > 1) {
    const int part = CeilDiv(size, 32);
    const bool begins_before =
        lane * part < size && segments[low + lane * part].y <= tile;
    const int parts = __popc(__ballot_sync(~0u, begins_before)) - 1;
    low += parts * part;
    size = min(part, size - parts * part);
  }
  return low;
}

// A tile of the results: rows [row, row_end), and columns from `column` on, of
// group `group`'s matrix. Sums are over [k_begin, k_end).
struct Tile {
  int group, row, row_end, column, k_begin, k_end;
};

// The number of tiles, or a close upper bound if only the device knows the
// groups.
template <Product kProduct>
__host__ __device__ inline int64_t MaxTiles(const Arguments& arguments,
                                            int tile_rows, int tile_columns) {
  const int64_t columns = CeilDiv(arguments.n, tile_columns);
  const int64_t rows = CeilDiv(arguments.m, tile_rows);
  if (kProduct == Product::kOuter) return arguments.groups * rows * columns;
  // Each segment but the last one may end within a tile.
  const int parts =
      2 * arguments.groups < arguments.m ? 2 * arguments.groups : arguments.m;
  return (rows + parts) * columns;
}

// Launches a kernel whose blocks take the tiles in turn: as many blocks as
// there are tiles, but no more than run at the same time.
template <Product kProduct, typename Kernel>
cudaError_t LaunchTiles(cudaStream_t stream, const Arguments& arguments,
                        int multiprocessors, Kernel kernel, int tile_rows,
                        int tile_columns, int threads, int shared_bytes) {
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  int blocks = 0;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel,
                                                        threads, shared_bytes);
  if (error != cudaSuccess) return error;
  const int64_t tiles = MaxTiles<kProduct>(arguments, tile_rows, tile_columns);
  const int64_t grid =
      std::min<int64_t>(tiles, int64_t{multiprocessors} * std::max(blocks, 1));
  kernel<<<static_cast<unsigned>(grid), threads, shared_bytes, stream>>>(
      arguments);
  return cudaGetLastError();
}

// The tiles in the order in which blocks take them. Tiles of the same weights
// follow one another.
template <Product kProduct, int kTileRows, int kTileColumns>
struct Tiles {
  const Arguments& arguments;
  int2* segments;  // in shared memory

  // Run by a warp, before the other warps call Get.
  __device__ void Prepare() {
    FindSegments(arguments.ranges, arguments.groups,
                 kProduct == Product::kOuter ? arguments.k : arguments.m,
                 kTileRows, CeilDiv(arguments.n, kTileColumns), segments);
  }

  __device__ int Count() const {
    return kProduct == Product::kOuter
               ? static_cast<int>(
                     MaxTiles<kProduct>(arguments, kTileRows, kTileColumns))
               : segments[NumSegmentEntries(arguments.groups) - 1].y;
  }

  // A warp finds a tile faster than a thread.
  template <bool kByWarp = false>
  __device__ Tile Get(int index) const {
    if constexpr (kProduct == Product::kOuter) {
      const int rows = CeilDiv(arguments.m, kTileRows);
      const int columns = CeilDiv(arguments.n, kTileColumns);
      const int group = index / (rows * columns);
      const int local = index % (rows * columns);
      return {group,
              local % rows * kTileRows,
              arguments.m,
              local / rows * kTileColumns,
              segments[2 * group + 1].x,
              segments[2 * group + 2].x};
    } else {
      const int segment =
          kByWarp ? FindSegmentByWarp(segments, arguments.groups, index)
                  : FindSegment(segments, arguments.groups, index);
      const int2 begin = segments[segment];
      const int end = segments[segment + 1].x;
      const int rows = CeilDiv(end - begin.x, kTileRows);
      const int local = index - begin.y;
      return {segment / 2, begin.x + local % rows * kTileRows,
              end,         local / rows * kTileColumns,
              0,           segment % 2 ? arguments.k : 0};
    }
  }
};

}  // namespace torch_xla_ext::grouped_matmul

#endif  // KERNELS_GROUPED_MATMUL_GROUPS_CUH_
