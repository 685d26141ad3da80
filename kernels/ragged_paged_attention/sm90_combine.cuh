// CombineKernel: combines the parts of contexts that Sm90Kernel has split, where
// the last part's block would take too long: for a kv head, one block would add
// up 64 rows of 16 parts, for example.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_SM90_COMBINE_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_SM90_COMBINE_CUH_

#include <cuda_runtime.h>

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/sm90_producer.cuh"
#include "kernels/ragged_paged_attention/sm90_split.cuh"

namespace torch_xla_ext::ragged::sm90 {

inline constexpr int kCombineThreads = 128;

// A block has the rows of a token and kv head. Grid: [tokens, kv heads]. `blocks` are those of Sm90Kernel.
template <typename T>
__global__ void __launch_bounds__(kCombineThreads)
    CombineKernel(const __grid_constant__ Arguments arguments,
                  const __grid_constant__ Split split, int blocks) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const int row = blockIdx.x;
  const int s = FindSequence(
      arguments, row, [&](int i) { return RowBegin(arguments, i); });
  const Sequence sequence = LoadSequence(arguments, max(s, 0));
  const int token = row - sequence.begin;
  const int num_parts = NumParts(arguments, split, sequence, kTokens, blocks);
  WaitForPreviousKernel();
  if (s < 0 || token >= sequence.q_len || num_parts == 1) return;
  CombineParts<T, kHeadDim>(arguments, split,
                            FirstPlace(arguments, split, sequence) + token,
                            blockIdx.y, num_parts, row, 0,
                            arguments.group_size, threadIdx.x);
#endif
}

template <typename T>
cudaError_t LaunchCombine(cudaStream_t stream, const Arguments& arguments,
                          const Split& split, int blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(arguments.num_tokens, arguments.num_kv_heads);
  config.blockDim = dim3(kCombineThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, CombineKernel<T>, arguments, split,
                            blocks);
}

}  // namespace torch_xla_ext::ragged::sm90

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_SM90_COMBINE_CUH_
