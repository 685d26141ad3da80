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

// Loads a matrix of `rows` times kDepth elements to shared memory, with the
// depth first. Elements outside of the limits become zeros. Neighboring threads
// load elements along the depth or along the rows.
template <typename Element>
__device__ inline void Load(float (&to)[kDepth][kTile + 1], bool along_depth,
                            int row, int row_end, int depth, int depth_end,
                            const Element& element) {
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const int r = along_depth ? i / kDepth : i % kTile;
    const int d = along_depth ? i % kDepth : i / kTile;
    const bool exists = row + r < row_end && depth + d < depth_end;
    to[d][r] = exists ? element(row + r, depth + d) : 0;
  }
}

// The value of an element in MXFP4. Its bits, shifted into a float, represent
// the value times 2^-126.
__device__ inline float MxToFloat(int code, int exponent) {
  const float value = __uint_as_float((code & 7) << 22) * 0x1p126f;
  const float scale = exponent == 0     ? 0x1p-127f
                      : exponent == 255 ? __uint_as_float(0x7fffffff)
                                        : __uint_as_float(exponent << 23);
  return (code & 8 ? -value : value) * scale;
}

// A thread computes 4 x 4 elements. Operands have scales if their dtype, In,
// differs from that of the results.
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
    using A = std::conditional_t<std::is_same_v<In, Mx>, T, In>;
    const auto of_a = [&](int row, int depth) {
      const int64_t at =
          kProduct == Product::kOuter ? depth * m + row : row * k + depth;
      const float value = ToFloat(static_cast<const A*>(arguments.a)[at]);
      if constexpr (std::is_same_v<A, T>) return value;
      return value * arguments.scales.OfA(row, depth);
    };
    const auto of_b = [&](int column, int depth) {
      const int64_t group = kProduct == Product::kOuter ? 0 : tile.group;
      const int64_t at = kProduct == Product::kLinear
                             ? (group * n + column) * k + depth
                             : (group * k + depth) * n + column;
      if constexpr (std::is_same_v<In, Mx>) {
        const int byte = static_cast<const uint8_t*>(arguments.b)[at / 2];
        return MxToFloat(depth % 2 ? byte >> 4 : byte,
                         arguments.exponents[at / kMxBlock]);
      } else {
        const float value = ToFloat(static_cast<const In*>(arguments.b)[at]);
        if constexpr (std::is_same_v<In, T>) return value;
        return value * arguments.scales.OfB(tile.group, column, depth);
      }
    };
    for (int depth = tile.k_begin; depth < tile.k_end; depth += kDepth) {
      __syncthreads();
      Load(a, kProduct != Product::kOuter, tile.row, tile.row_end, depth,
           tile.k_end, of_a);
      Load(b, kProduct == Product::kLinear, tile.column, arguments.n, depth,
           tile.k_end, of_b);
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
