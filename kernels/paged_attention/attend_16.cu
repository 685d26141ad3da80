// The kernels for caches of BF16 and F16.
#include "kernels/paged_attention/launch.cuh"

namespace torch_xla_ext::paged_attention {

template Status LaunchForCache<Bf16OrF16>(cudaStream_t stream, int64_t head_dim,
                                          float* workspace,
                                          int64_t workspace_size,
                                          const DecodeArgs& args);

}  // namespace torch_xla_ext::paged_attention
