// The generic kernel for caches of BF16.
#include "kernels/ragged_paged_attention/generic_kernel.cuh"

namespace torch_xla_ext::ragged {

template cudaError_t LaunchGenericKernel<__nv_bfloat16>(
    cudaStream_t stream, const Arguments& arguments);

}  // namespace torch_xla_ext::ragged
