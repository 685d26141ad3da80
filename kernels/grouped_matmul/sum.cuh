// Sums of rows with weights, a part of grouped_matmul.cu.
#ifndef KERNELS_GROUPED_MATMUL_SUM_CUH_
#define KERNELS_GROUPED_MATMUL_SUM_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/common/vector.cuh"
#include "kernels/grouped_matmul/simple.cuh"

namespace torch_xla_ext::grouped_matmul::sum {

struct Arguments {
  const void* products;  // [rows, n]
  const int* position;   // [sums, terms]
  const float* weights;  // [sums, terms]
  void* out;             // [sums, n]
  int rows, terms, n;
};

inline constexpr int kMostThreads = 256;
inline constexpr int kTerms = 8;

// A thread adds kCount columns. Grid: [sums, columns].
template <typename T, int kCount>
__global__ void __launch_bounds__(kMostThreads)
    Kernel(const __grid_constant__ Arguments arguments) {
  using Values = Vector<T, kCount>;
  const int n = arguments.n;
  const int column = (blockIdx.y * blockDim.x + threadIdx.x) * kCount;
  if (column >= n) return;
  const T* const products = static_cast<const T*>(arguments.products) + column;
  const int64_t first = int64_t{blockIdx.x} * arguments.terms;
  float sums[kCount] = {};
  // Loads of several terms are in flight at once.
  for (int j = 0; j < arguments.terms; j += kTerms) {
    int rows[kTerms];
    float weights[kTerms];
    Values values[kTerms];
#pragma unroll
    for (int i = 0; i < kTerms; ++i) {
      const bool exists = j + i < arguments.terms;
      rows[i] = exists ? arguments.position[first + j + i] : -1;
      weights[i] = exists ? arguments.weights[first + j + i] : 0;
    }
#pragma unroll
    for (int i = 0; i < kTerms; ++i) {
      if (rows[i] < 0 || rows[i] >= arguments.rows) continue;
      values[i] =
          *reinterpret_cast<const Values*>(products + int64_t{rows[i]} * n);
    }
#pragma unroll
    for (int i = 0; i < kTerms; ++i) {
      if (rows[i] < 0 || rows[i] >= arguments.rows) continue;
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        sums[k] += weights[i] * ToFloat(values[i].values[k]);
      }
    }
  }
  Values out;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    out.values[i] = simple::FromFloat<T>(sums[i]);
  }
  T* const to = static_cast<T*>(arguments.out) + int64_t{blockIdx.x} * n;
  *reinterpret_cast<Values*>(to + column) = out;
}

template <typename T, int kCount>
void LaunchColumns(cudaStream_t stream, int sums, const Arguments& arguments) {
  const int columns = CeilDiv(arguments.n, kCount);
  const int threads = std::min(CeilDiv(columns, 32) * 32, kMostThreads);
  const dim3 grid(sums, CeilDiv(columns, threads));
  Kernel<T, kCount><<<grid, threads, 0, stream>>>(arguments);
}

template <typename T>
void Launch(cudaStream_t stream, int sums, const Arguments& arguments) {
  constexpr int kCount = 16 / sizeof(T);
  const auto is_aligned = [](const void* data) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  if (arguments.n % kCount == 0 && is_aligned(arguments.products) &&
      is_aligned(arguments.out)) {
    LaunchColumns<T, kCount>(stream, sums, arguments);
  } else {
    LaunchColumns<T, 1>(stream, sums, arguments);
  }
}

}  // namespace torch_xla_ext::grouped_matmul::sum

#endif  // KERNELS_GROUPED_MATMUL_SUM_CUH_
