// The kernels for caches of F8E4M3FN.
#include "kernels/paged_attention/launch.cuh"

namespace torch_xla_ext::paged_attention {

template Status LaunchForCache<__nv_fp8_e4m3>(cudaStream_t stream,
                                              int64_t head_dim,
                                              float* workspace,
                                              int64_t workspace_size,
                                              const DecodeArgs& args);

}  // namespace torch_xla_ext::paged_attention
