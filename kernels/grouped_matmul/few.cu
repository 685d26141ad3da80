// Launches of the kernel for groups of few rows, on Hopper.
#include <algorithm>
#include <cstdint>

#include "kernels/grouped_matmul/few.cuh"
#include "kernels/grouped_matmul/sm90.h"

namespace torch_xla_ext::grouped_matmul {
namespace {

// For up to 8 rows of a group, and for up to 16; and for elements of 16 bits.
using MxOf8 = few::Shape<2, 1, 1, 4, 3>;
using MxOf16 = few::Shape<4, 2, 2, 2, 3>;
using Wide = few::Shape<1, 1, 1, 8, 6>;

template <typename W, typename S>
cudaError_t Launch(cudaStream_t stream, const Arguments& arguments,
                   int multiprocessors) {
  const auto kernel = few::Kernel<W, __nv_bfloat16, S>;
  const int bytes = few::SharedBytes<W, S>(arguments.groups);
  cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  int blocks = 0;
  error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel,
                                                        S::kThreads, bytes);
  if (error != cudaSuccess) return error;
  const int64_t tiles =
      MaxTiles<Product::kLinear>(arguments, S::kRows, S::kColumns);
  const int64_t grid =
      std::min<int64_t>(tiles, int64_t{multiprocessors} * std::max(blocks, 1));
  kernel<<<static_cast<unsigned>(grid), S::kThreads, bytes, stream>>>(
      arguments);
  return cudaGetLastError();
}

}  // namespace

// The host knows the average number of rows only.
bool IsOfFewRows(const Arguments& arguments, int multiprocessors) {
  if (arguments.exponents != nullptr) {
    return arguments.m / arguments.groups < 20;
  }
  // Otherwise tiles of 128 columns are as fast, once there are two for each
  // multiprocessor.
  return int64_t{arguments.m} * CeilDiv(arguments.n, 128) < 2 * multiprocessors;
}

cudaError_t LaunchFew(cudaStream_t stream, const Arguments& arguments,
                      int multiprocessors) {
  const auto launch = arguments.exponents == nullptr
                          ? Launch<__nv_bfloat16, Wide>
                      : arguments.m / arguments.groups < 5 ? Launch<Mx, MxOf8>
                                                           : Launch<Mx, MxOf16>;
  return launch(stream, arguments, multiprocessors);
}

}  // namespace torch_xla_ext::grouped_matmul
