// The kernels for several query tokens at the end of each long context, on
// Hopper: AttendKernel and CombineKernel of paged_attention, in which a row is
// a pair of a query token and a head of the kv head.
//
// They serve a batch only if no sequence has more rows than fit one thread
// block, which they determine on the GPU. The kernel after them serves all
// other batches.
#include "kernels/paged_attention/launch.cuh"
#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/few_queries.cuh"
#include "kernels/ragged_paged_attention/workspace.h"

namespace torch_xla_ext::ragged {
namespace {

using paged_attention::AttendTraits;
using paged_attention::DecodeArgs;
using paged_attention::HeadBlock;
using paged_attention::Units;

constexpr int kHeadDim = kSm90HeadDim;

// The same batch for AttendKernel and for LoadSequence.
struct TokenArgs : DecodeArgs {
  Arguments batch;
  int max_q_len;  // the limit for batches that these kernels serve
};

// The following functions overload those for DecodeArgs.

__device__ inline Sequence LoadIfLive(const TokenArgs& args, int seq) {
  Sequence sequence = LoadSequence(args.batch, seq);
  if (seq >= NumSequences(args.batch)) sequence.q_len = 0;
  return sequence;
}

// Sequences without rows have no units.
template <int kUnit>
__device__ inline Units UnitsOf(const TokenArgs& args, int seq) {
  const Sequence sequence = LoadIfLive(args, seq);
  const int units = max(CeilDivide(sequence.kv_len, kUnit), 1);
  return {sequence.kv_len, 0, sequence.q_len > 0 ? units : 0};
}

__device__ inline bool Refuses(const TokenArgs& args, int first, int last) {
  bool is_long = false;
#pragma unroll 1
  for (int seq = first; seq < last; ++seq) {
    is_long |= LoadIfLive(args, seq).q_len > args.max_q_len;
  }
  return __syncthreads_or(is_long);
}

__device__ inline TokenRows RowsOf(const TokenArgs& args,
                                   const HeadBlock& block, int seq) {
  return TokenRowsOf(args.batch, LoadSequence(args.batch, seq), block.kv_head,
                     0, args.rows);
}

// Does nothing, because the next row is not known yet.
template <typename Traits>
__device__ inline void PrefetchQuery(const TokenArgs& args,
                                     const HeadBlock& block, int seq) {}

// Grid: [kv heads, parts].
template <typename Traits>
__global__ void __launch_bounds__(32 * paged_attention::kMaxWarps)
    FewQueriesSplitKernel(const __grid_constant__ TokenArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  paged_attention::AttendParts<Traits, true>(args);
  SetZeros(args);
  ZeroOtherRows(args.batch, blockIdx.y * gridDim.x + blockIdx.x,
                gridDim.x * gridDim.y, threadIdx.x, blockDim.x);
#endif
}

Status LaunchRows(cudaStream_t stream, const TokenArgs& args) {
  Device device;
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(GetDevice(&device)));
  float* const workspace = args.batch.workspace + args.num_zeroed;
  const int64_t size = args.batch.workspace_size - args.num_zeroed;
  using OneTile = AttendTraits<Bf16OrF16, kHeadDim, 1>;
  using TwoTiles = AttendTraits<Bf16OrF16, kHeadDim, 2>;
  return args.rows == OneTile::kHeads
             ? paged_attention::LaunchParts<OneTile>(
                   stream, device, workspace, size,
                   FewQueriesSplitKernel<OneTile>, args)
             : paged_attention::LaunchParts<TwoTiles>(
                   stream, device, workspace, size,
                   FewQueriesSplitKernel<TwoTiles>, args);
}

}  // namespace

Status LaunchFewQueriesSplit(cudaStream_t stream, const DecodeArgs& decode,
                             Arguments* arguments) {
  TokenArgs args = {};
  static_cast<DecodeArgs&>(args) = decode;
  args.rows = FewQueriesRows(arguments->num_tokens, arguments->max_num_seqs,
                             arguments->group_size);
  args.head_blocks = 1;
  args.num_seqs = arguments->max_num_seqs;
  args.max_q_len = args.rows / arguments->group_size;
  args.batch = *arguments;
  arguments->few_queries = args.max_q_len;
  return LaunchRows(stream, args);
}

}  // namespace torch_xla_ext::ragged
