// Combines the parts of the contexts that the Hopper kernel has split. The
// block that computes a tile's last part would combine one row after another;
// this kernel uses all multiprocessors.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_SM90_COMBINE_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_SM90_COMBINE_CUH_

#include <cuda_runtime.h>

#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/sm90_producer.cuh"
#include "kernels/ragged_paged_attention/sm90_split.cuh"

namespace torch_xla_ext::ragged::sm90 {

inline constexpr int kCombineThreads = 128;

// A block has the rows of a token and kv head. Grid: [tokens, kv heads].
template <typename T>
__global__ void __launch_bounds__(kCombineThreads)
    CombineKernel(const __grid_constant__ Arguments arguments,
                  const __grid_constant__ Split split) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const int row = blockIdx.x;
  const int s = FindSequence(arguments, row,
                             [&](int i) { return RowBegin(arguments, i); });
  Sequence sequence;
  Parts parts = {1, 0};
  if (s >= 0) {
    sequence = LoadSequence(arguments, s);
    if (row < sequence.begin + sequence.q_len) {
      parts = SplitContext(arguments, split, sequence,
                           kRows / arguments.group_size);
    }
  }
  WaitForPreviousKernel();
  if (parts.count == 1) return;
  const int place =
      FirstPlace(arguments, split, sequence) + row - sequence.begin;
  CombineParts<T, kHeadDim>(arguments, split, place, blockIdx.y, parts.count,
                            row, 0, arguments.group_size, threadIdx.x);
#endif
}

// Launched after the Hopper kernel; may start before it ends.
template <typename T>
cudaError_t LaunchCombine(cudaStream_t stream, const Arguments& arguments,
                          const Split& split) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(arguments.num_tokens, arguments.num_kv_heads);
  config.blockDim = dim3(kCombineThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, CombineKernel<T>, arguments, split);
}

}  // namespace torch_xla_ext::ragged::sm90

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_SM90_COMBINE_CUH_
