// The kernels for Hopper (grouped_matmul_sm90.cu, few.cu).
#ifndef KERNELS_GROUPED_MATMUL_SM90_H_
#define KERNELS_GROUPED_MATMUL_SM90_H_

#include "kernels/grouped_matmul/groups.cuh"

namespace torch_xla_ext::grouped_matmul {

// Launches the kernel for a GPU of compute capability 9.0. Addresses, and the
// sizes of rows in bytes, must be multiples of 16.
cudaError_t LaunchSm90(cudaStream_t stream, Product product,
                       const Arguments& arguments, int multiprocessors);

// Launches the kernel for groups of few rows, for kLinear with bfloat16, or
// MXFP4 times bfloat16. IsOfFewRows returns whether that kernel is faster, as
// measured.
cudaError_t LaunchFew(cudaStream_t stream, const Arguments& arguments,
                      int multiprocessors);
bool IsOfFewRows(const Arguments& arguments, int multiprocessors);

}  // namespace torch_xla_ext::grouped_matmul

#endif  // KERNELS_GROUPED_MATMUL_SM90_H_
