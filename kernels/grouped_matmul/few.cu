// Launches of the kernel for groups of few rows, on Hopper.
#include <cstdint>

#include "kernels/grouped_matmul/few.cuh"
#include "kernels/grouped_matmul/sm90.h"

namespace torch_xla_ext::grouped_matmul {
namespace {

// MXFP4 for up to 8 and up to 16 rows per group, then 16-bit elements.
using MxOf8 = few::Shape<2, 1, 1, 4, 3>;
using MxOf16 = few::Shape<4, 2, 2, 2, 3>;
using Wide = few::Shape<1, 1, 1, 8, 6>;

template <typename W, typename S>
cudaError_t Launch(cudaStream_t stream, const Arguments& arguments,
                   int multiprocessors) {
  return LaunchTiles<Product::kLinear>(
      stream, arguments, multiprocessors, few::Kernel<W, __nv_bfloat16, S>,
      S::kRows, S::kColumns, S::kThreads,
      few::SharedBytes<W, S>(arguments.groups));
}

}  // namespace

// The host knows the average number of rows only.
bool IsOfFewRows(const Arguments& arguments, int multiprocessors) {
  if (arguments.exponents != nullptr) {
    return arguments.m / arguments.groups < 20;
  }
  // For 16-bit elements, the sm90 kernel is as fast once it has two tiles of
  // 128 columns per multiprocessor.
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
