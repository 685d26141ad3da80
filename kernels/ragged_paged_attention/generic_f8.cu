// The generic kernel for caches of F8E4M3FN.
#include "kernels/ragged_paged_attention/generic_kernel.cuh"

namespace torch_xla_ext::ragged {

template cudaError_t LaunchGenericKernel<__nv_fp8_e4m3>(
    cudaStream_t stream, const Arguments& arguments);

}  // namespace torch_xla_ext::ragged
