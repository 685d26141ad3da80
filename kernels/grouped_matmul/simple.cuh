// The kernel for float, and for sizes and addresses that the other kernels
// cannot load: a part of grouped_matmul.cu.
#ifndef KERNELS_GROUPED_MATMUL_SIMPLE_CUH_
#define KERNELS_GROUPED_MATMUL_SIMPLE_CUH_

#include <type_traits>

#include "kernels/common/vector.cuh"
#include "kernels/grouped_matmul/groups.cuh"

namespace torch_xla_ext::grouped_matmul::simple {

inline constexpr int kTile = 64;  // rows and columns
inline constexpr int kDepth = 16;
inline constexpr int kThreads = 256;

template <typename T>
__device__ inline T FromFloat(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// A matrix of `rows` times kDepth elements, of which those outside of the
// limits are zeros, in shared memory with the depth first. scale(row, depth) is
// an element's factor.
template <typename T, typename Scale>
__device__ inline void Load(float (&to)[kDepth][kTile + 1], const T* from,
                            int64_t row_stride, int64_t depth_stride, int row,
                            int row_end, int depth, int depth_end,
                            const Scale& scale) {
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    // Neighboring threads load neighboring elements.
    const int r = depth_stride == 1 ? i / kDepth : i % kTile;
    const int d = depth_stride == 1 ? i % kDepth : i / kTile;
    const bool exists = row + r < row_end && depth + d < depth_end;
    const int64_t offset = (row + r) * row_stride + (depth + d) * depth_stride;
    to[d][r] = exists ? ToFloat(from[offset]) * scale(row + r, depth + d) : 0;
  }
}

// A thread computes 4 x 4 elements. Operands of another dtype than the results
// have scales.
template <typename In, typename T, Product kProduct>
__global__ void __launch_bounds__(kThreads)
    Kernel(const __grid_constant__ Arguments arguments) {
  extern __shared__ int2 segments[];
  __shared__ float a[kDepth][kTile + 1], b[kDepth][kTile + 1];
  Tiles<kProduct, kTile, kTile> tiles{arguments, segments};
  if (threadIdx.x < 32) tiles.Prepare();
  __syncthreads();
  const int64_t m = arguments.m, n = arguments.n, k = arguments.k;
  const int thread_row = threadIdx.x / 16 * 4, thread_column = threadIdx.x % 16;
  const int count = tiles.Count();
  for (int index = blockIdx.x; index < count; index += gridDim.x) {
    const Tile tile = tiles.Get(index);
    float sums[4][4] = {};
    const auto a_scale = [&](int row, int depth) {
      if constexpr (std::is_same_v<In, T>) return 1.0f;
      return arguments.scales.OfA(row, depth);
    };
    const auto b_scale = [&](int column, int depth) {
      if constexpr (std::is_same_v<In, T>) return 1.0f;
      return arguments.scales.OfB(tile.group, column, depth);
    };
    const In* const a_data = static_cast<const In*>(arguments.a);
    const In* b_data = static_cast<const In*>(arguments.b);
    if (kProduct != Product::kOuter) b_data += tile.group * k * n;
    for (int depth = tile.k_begin; depth < tile.k_end; depth += kDepth) {
      __syncthreads();
      Load(a, a_data, kProduct == Product::kOuter ? 1 : k,
           kProduct == Product::kOuter ? m : 1, tile.row, tile.row_end, depth,
           tile.k_end, a_scale);
      Load(b, b_data, kProduct == Product::kLinear ? k : 1,
           kProduct == Product::kLinear ? 1 : n, tile.column, arguments.n,
           depth, tile.k_end, b_scale);
      __syncthreads();
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums[i][j] += a[d][thread_row + i] * b[d][thread_column + 16 * j];
          }
        }
      }
    }
    T* out = static_cast<T*>(arguments.out);
    if (kProduct == Product::kOuter) out += tile.group * m * n;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = tile.row + thread_row + i;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int column = tile.column + thread_column + 16 * j;
        if (row < tile.row_end && column < arguments.n) {
          out[row * n + column] = FromFloat<T>(sums[i][j]);
        }
      }
    }
  }
}

}  // namespace torch_xla_ext::grouped_matmul::simple

#endif  // KERNELS_GROUPED_MATMUL_SIMPLE_CUH_
