// XlaGpuPagedAttention for CUDA: checks, and the arguments of the kernels.
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <optional>

#include "kernels/common/checks.h"
#include "kernels/paged_attention/float32.cuh"
#include "kernels/paged_attention/float32.h"
#include "kernels/paged_attention/paged_attention.h"
#include "kernels/paged_attention/partition.cuh"
#include "kernels/paged_attention/traits.cuh"
#include "kernels/paged_attention/workspace.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::paged_attention {
namespace {

// One thread per sequence: a debugging aid need not be fast.
__global__ void ReportOutOfRangeKernel(DecodeArgs args) {
  const int seq = blockIdx.x * blockDim.x + threadIdx.x;
  if (seq >= args.num_seqs) return;
  const int context = args.context_lens[seq];
  if (context < 0 || context > args.max_tokens) {
    printf("XlaGpuPagedAttention: context_lens[%d] = %d is not in [0, %d]\n",
           seq, context, args.max_tokens);
  }
  const Units units = UnitsOf<1>(args, seq);
  const int size = args.block_size.divisor;
  for (int i = units.first / size;
       static_cast<int64_t>(i) * size < units.context; ++i) {
    const int block =
        args.block_tables[static_cast<int64_t>(seq) * args.max_blocks + i];
    if (static_cast<uint32_t>(block) >= args.num_blocks) {
      printf(
          "XlaGpuPagedAttention: block_tables[%d][%d] = %d is not in [0, %u)\n",
          seq, i, block, args.num_blocks);
    }
  }
}

Status CheckAtMost(const char* what, int64_t value, int64_t limit) {
  if (value <= limit) return Status::Ok();
  return Status::Error("expected ", what, " to be at most ", limit, " but got ",
                       value);
}

Status LaunchPagedAttention(cudaStream_t stream, AnyBuffer query,
                            AnyBuffer key_cache, AnyBuffer value_cache,
                            Buffer<S32, 2> block_tables,
                            Buffer<S32, 1> context_lens,
                            std::optional<Buffer<F32, 1>> alibi_slopes,
                            std::optional<Buffer<F32, 1>> sinks, AnyResult out,
                            Result<F32, 2> lse, Result<F32, 1> workspace,
                            const PagedAttentionParams& params) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckLseRows(lse.dim(0), query.dim(0)));
  if (out.size() == 0) return Status::Ok();
  const int64_t num_seqs = query.dim(0), num_heads = query.dim(1);
  const int64_t num_blocks = key_cache.dim(0), block_size = key_cache.dim(1);
  const int64_t num_kv_heads = key_cache.dim(2);
  const int64_t max_blocks = block_tables.dim(1);
  XLA_KERNEL_RETURN_IF_ERROR(CheckAtMost("num_seqs", num_seqs, 1 << 24));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAtMost("num_heads", num_heads, 1 << 16));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAtMost("max_blocks", max_blocks, INT_MAX));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAtMost("block_size", block_size, INT_MAX));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAtMost("num_blocks", num_blocks, INT_MAX));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAtMost(
      "num_blocks * block_size", num_blocks * block_size, int64_t{kNoRow} - 1));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("operand 0 (query)", query.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("operand 1 (key_cache)", key_cache.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("operand 2 (value_cache)", value_cache.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("result 0 (out)", out.untyped_data()));

  constexpr double kLog2E = 1.4426950408889634;
  DecodeArgs args = {};
  args.query = query.untyped_data();
  args.key_cache = key_cache.untyped_data();
  args.value_cache = value_cache.untyped_data();
  args.block_tables = block_tables.data();
  args.context_lens = context_lens.data();
  args.alibi_slopes = alibi_slopes ? alibi_slopes->data() : nullptr;
  args.sinks = sinks ? sinks->data() : nullptr;
  args.out = out.untyped_data();
  args.lse = lse.size() > 0 ? lse.data() : nullptr;
  args.num_seqs = static_cast<int>(num_seqs);
  args.num_heads = static_cast<int>(num_heads);
  args.num_kv_heads = static_cast<int>(num_kv_heads);
  args.head_step = 1;
  args.max_blocks = static_cast<int>(max_blocks);
  args.block_size = Divisor::Of(static_cast<uint32_t>(block_size));
  args.num_blocks = static_cast<uint32_t>(num_blocks);
  // The tokens of a unit may be counted past the context's end.
  args.max_tokens = static_cast<int>(
      std::min<int64_t>(max_blocks * block_size, INT_MAX - 64));
  // All sequences' units (partition.cuh) are counted, too.
  XLA_KERNEL_RETURN_IF_ERROR(CheckAtMost("num_seqs * max_blocks * block_size",
                                         num_seqs * (args.max_tokens + 32),
                                         int64_t{16} * INT_MAX));
  args.query_is_bf16 = query.dtype() == BF16;
  args.sliding_window =
      params.sliding_window > 0
          ? static_cast<int>(std::min<int64_t>(params.sliding_window, INT_MAX))
          : INT_MAX;
  args.logit_scale =
      static_cast<float>(params.scale * params.key_scale * kLog2E);
  args.soft_cap = static_cast<float>(params.soft_cap * kLog2E);
  args.value_scale = static_cast<float>(params.value_scale);

  if (params.report_out_of_range) {
    ReportOutOfRangeKernel<<<(args.num_seqs + 127) / 128, 128, 0, stream>>>(
        args);
    XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaGetLastError()));
  }
  if (query.dtype() == F32) {
    Float32Args exact = {};
    exact.query = static_cast<const float*>(args.query);
    exact.key_cache = args.key_cache;
    exact.value_cache = args.value_cache;
    exact.head_step = args.head_step;
    exact.block_tables = args.block_tables;
    exact.context_lens = args.context_lens;
    exact.alibi_slopes = args.alibi_slopes;
    exact.sinks = args.sinks;
    exact.out = static_cast<float*>(args.out);
    exact.lse = args.lse;
    exact.num_rows = exact.max_num_seqs = args.num_seqs;
    exact.num_heads = args.num_heads;
    exact.num_kv_heads = args.num_kv_heads;
    exact.head_dim = static_cast<int>(query.dim(2));
    exact.max_blocks = args.max_blocks;
    exact.block_size = static_cast<int>(block_size);
    exact.num_blocks = static_cast<int>(num_blocks);
    exact.sliding_window = args.sliding_window;
    exact.causal = true;
    exact.logit_scale = static_cast<float>(params.scale * params.key_scale);
    exact.soft_cap = static_cast<float>(params.soft_cap);
    exact.value_scale = args.value_scale;
    return LaunchFloat32(stream, key_cache.dtype(), exact);
  }
  return LaunchDecode(stream, key_cache.dtype(), query.dim(2), workspace.data(),
                      workspace.size(), args);
}

}  // namespace

int CodeArch(const Device& device) {
  int newest = 0;
  for (const int arch : {__CUDA_ARCH_LIST__}) {
    if (arch <= device.major * 100 + device.minor * 10) {
      newest = std::max(newest, arch);
    }
  }
  return newest;
}

Status LaunchDecode(cudaStream_t stream, DType cache_dtype, int64_t head_dim,
                    float* workspace, int64_t workspace_size, DecodeArgs args) {
  const int group = args.num_heads / args.num_kv_heads;
  args.head_blocks = static_cast<int>((group + kMaxRows - 1) / kMaxRows);
  args.rows = (group + args.head_blocks - 1) / args.head_blocks;
  switch (cache_dtype) {
    case F16:
    case BF16:
      return LaunchForCache<Bf16OrF16>(stream, head_dim, workspace,
                                       workspace_size, args);
    default:  // the signatures allow nothing else
      return LaunchForCache<__nv_fp8_e4m3>(stream, head_dim, workspace,
                                           workspace_size, args);
  }
}

Status LaunchFloat32(cudaStream_t stream, DType cache_dtype,
                     const Float32Args& args) {
  return cache_dtype == F32
             ? float32::LaunchForCache<float>(stream, args)
             : float32::LaunchForCache<__nv_fp8_e4m3>(stream, args);
}

}  // namespace torch_xla_ext::paged_attention

XLA_KERNEL_CUDA(XlaGpuPagedAttention,
                torch_xla_ext::paged_attention::kPagedAttention,
                torch_xla_ext::paged_attention::LaunchPagedAttention,
                torch_xla_ext::kCommandBufferCompatible);
