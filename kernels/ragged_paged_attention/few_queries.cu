// The kernel for several queries of one or two sequences with long contexts, on
// Hopper: the cluster kernel of paged_attention, in which a row is a pair of a
// query token and a head of the kv head.
#include "kernels/paged_attention/cluster.cuh"
#include "kernels/paged_attention/launch.cuh"
#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/few_queries.cuh"

namespace torch_xla_ext::ragged {
namespace {

using paged_attention::ClusterMemory;
using paged_attention::ClusterTraits;
using paged_attention::DecodeArgs;
using paged_attention::HalfClusterTraits;
using paged_attention::kClusterBlocks;
using paged_attention::kClusterWarps;

constexpr int kHeadDim = kSm90HeadDim;
constexpr int kRows = kFewQueriesTileRows;
constexpr int kHeadTiles = kRows / 8;

template <typename Traits>
__device__ inline void AttendRows(const DecodeArgs& args,
                                  const Arguments& arguments) {
  extern __shared__ __align__(128) unsigned char bytes[];
  ClusterMemory<Traits>& memory =
      *reinterpret_cast<ClusterMemory<Traits>*>(bytes);
  const int seq = blockIdx.z;
  const int kv_head = blockIdx.y / args.head_blocks;
  const int first = blockIdx.y % args.head_blocks * kRows;
  WaitForPreviousKernel();
  if (seq == 0 && blockIdx.y == 0) {
    ZeroOtherRows(arguments, blockIdx.x, kClusterBlocks, threadIdx.x,
                  blockDim.x);
  }
  if (seq >= NumSequences(arguments)) return;
  const Sequence sequence = LoadSequence(arguments, seq);
  const TokenRows rows =
      TokenRowsOf(arguments, sequence, kv_head, first, kRows);
  if (rows.count <= 0) return;  // the whole cluster returns
  if (threadIdx.x == 0) InitReceiver(SharedAddress(&memory.received));
  ArriveAtCluster();

  const int unit = blockIdx.x * kClusterWarps + threadIdx.x / 32;
  const auto units = paged_attention::UnitsOf<Traits::kUnit>(args, seq);
  paged_attention::ClusterLoader<Traits> loader(
      args, seq, kv_head, unit, kClusterBlocks * kClusterWarps, memory);
  paged_attention::AttendInCluster<Traits>(args, rows, units, loader, unit,
                                           memory);
}

// Grid: [kClusterBlocks, blocks of rows of all kv heads, sequences].
template <typename Traits>
__global__ void __launch_bounds__(32 * kClusterWarps, 1)
    FewQueriesKernel(const __grid_constant__ DecodeArgs args,
                     const __grid_constant__ Arguments arguments) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  AttendRows<Traits>(args, arguments);
#endif
}

template <typename Traits>
Status LaunchTraits(cudaStream_t stream, const DecodeArgs& args,
                    const Arguments& arguments) {
  const auto kernel = FewQueriesKernel<Traits>;
  constexpr int kSharedMemory = sizeof(ClusterMemory<Traits>);
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMemory)));
  const dim3 grid(kClusterBlocks, args.num_kv_heads * args.head_blocks,
                  arguments.max_num_seqs);
  return paged_attention::Launch(kernel, grid, 32 * kClusterWarps,
                                 kSharedMemory, stream, kClusterBlocks, true,
                                 args, arguments);
}

template <typename T>
Status LaunchType(cudaStream_t stream, bool half, const DecodeArgs& args,
                  const Arguments& arguments) {
  return half ? LaunchTraits<HalfClusterTraits<T, kHeadDim, kHeadTiles>>(
                    stream, args, arguments)
              : LaunchTraits<ClusterTraits<T, kHeadDim, kHeadTiles>>(
                    stream, args, arguments);
}

}  // namespace

Status LaunchFewQueries(cudaStream_t stream, const Arguments& arguments,
                        bool half, DecodeArgs args) {
  const int64_t rows = int64_t{1} * arguments.num_tokens * arguments.group_size;
  args.cu_q_lens = nullptr;
  args.rows = kRows;
  args.head_blocks = static_cast<int>((rows + kRows - 1) / kRows);
  args.num_seqs = arguments.max_num_seqs;
  return arguments.is_bf16
             ? LaunchType<__nv_bfloat16>(stream, half, args, arguments)
             : LaunchType<__half>(stream, half, args, arguments);
}

}  // namespace torch_xla_ext::ragged
