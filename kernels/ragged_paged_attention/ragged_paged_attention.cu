// XlaGpuRaggedPagedAttention for CUDA: checks, and the launch of the kernels
// that variants.cuh chooses.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "kernels/common/checks.h"
#include "kernels/paged_attention/float32.h"
#include "kernels/paged_attention/partition.cuh"
#include "kernels/ragged_paged_attention/arguments.cuh"
#include "kernels/ragged_paged_attention/ragged_paged_attention.h"
#include "kernels/ragged_paged_attention/variants.cuh"
#include "kernels/ragged_paged_attention/workspace.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::ragged {
namespace {

using ragged::Arguments;

// Prints device data that is out of range: one block per sequence, and one for
// the number of sequences.
__global__ void ReportOutOfRange(const Arguments arguments) {
  const char* target = "XlaGpuRaggedPagedAttention";
  const int s = static_cast<int>(blockIdx.x) - 1;
  if (s < 0) {
    const int num_seqs = *arguments.num_seqs;
    if (threadIdx.x == 0 &&
        (num_seqs < 0 || num_seqs > arguments.max_num_seqs)) {
      printf("%s: num_seqs: expected 0 to %d but got %d\n", target,
             arguments.max_num_seqs, num_seqs);
    }
    return;
  }
  if (s >= ragged::NumSequences(arguments)) return;
  const int kv_len = arguments.kv_lens[s];
  const int begin = arguments.cu_q_lens[s], end = arguments.cu_q_lens[s + 1];
  const int max_kv_len = arguments.pages_per_seq * arguments.page_size;
  const ragged::Sequence sequence = ragged::LoadSequence(arguments, s);
  if (threadIdx.x == 0) {
    if (kv_len < 0 || kv_len > max_kv_len) {
      printf("%s: kv_lens[%d]: expected 0 to %d but got %d\n", target, s,
             max_kv_len, kv_len);
    }
    if (begin < 0 || end < begin || end > arguments.num_tokens) {
      printf(
          "%s: cu_q_lens[%d] and [%d]: expected numbers that do not decrease, "
          "0 to %d, but got %d and %d\n",
          target, s, s + 1, arguments.num_tokens, begin, end);
    } else if (arguments.causal && sequence.q_len > sequence.kv_len) {
      printf("%s: sequence %d: expected at most %d query rows but got %d\n",
             target, s, sequence.kv_len, sequence.q_len);
    }
  }
  if (threadIdx.x == 0 && end - begin > arguments.max_q_len) {
    printf(
        "%s: sequence %d: expected at most max_q_len=%d query rows but got "
        "%d\n",
        target, s, arguments.max_q_len, end - begin);
  }
  if (sequence.q_len == 0) return;
  // Page numbers before the window are not checked: they may have any value.
  const int first_position = ragged::PositionOf(arguments, sequence, 0);
  const int first_token =
      max(max(first_position, 0) - arguments.sliding_window + 1, 0);
  const int num_pages =
      ragged::CeilDivide(sequence.kv_len, arguments.page_size);
  for (int i = first_token / arguments.page_size + threadIdx.x; i < num_pages;
       i += blockDim.x) {
    const int page =
        arguments
            .page_indices[static_cast<int64_t>(s) * arguments.pages_per_seq +
                          i];
    if (page < 0 || page >= arguments.total_num_pages) {
      printf("%s: page_indices[%d][%d]: expected 0 to %d but got %d\n", target,
             s, i, arguments.total_num_pages - 1, page);
    }
  }
}

Status CheckFits(const char* what, int64_t value) {
  if (value <= INT_MAX) return Status::Ok();
  return Status::Error("expected ", what, " to be less than 2^31 but got ",
                       value);
}

// The batch as arguments of the kernels of paged_attention, with one sequence
// per row.
paged_attention::DecodeArgs DecodeArgsOf(DType cache_dtype,
                                         const Arguments& arguments) {
  const int64_t head_bytes =
      int64_t{arguments.head_dim} * (cache_dtype == F8E4M3FN ? 1 : 2);
  paged_attention::DecodeArgs args = {};
  args.query = arguments.q;
  args.key_cache = arguments.kv_pages;
  args.value_cache = static_cast<const char*>(arguments.kv_pages) + head_bytes;
  args.head_step = 2;
  args.block_tables = arguments.page_indices;
  args.context_lens = arguments.kv_lens;
  args.sinks = arguments.sinks;
  args.out = arguments.out;
  args.lse = arguments.lse;
  args.cu_q_lens = arguments.cu_q_lens;
  args.num_live_seqs = arguments.num_seqs;
  args.num_seqs = arguments.num_tokens;
  args.num_heads = arguments.num_q_heads;
  args.num_kv_heads = arguments.num_kv_heads;
  args.max_blocks = arguments.pages_per_seq;
  args.block_size = paged_attention::Divisor::Of(arguments.page_size);
  args.num_blocks = arguments.total_num_pages;
  args.max_tokens = arguments.pages_per_seq * arguments.page_size;
  args.query_is_bf16 = arguments.is_bf16;
  args.sliding_window = arguments.sliding_window;
  args.logit_scale = arguments.logit_scale * kLog2e;
  args.soft_cap = arguments.soft_cap * kLog2e;
  args.value_scale = arguments.v_scale;
  return args;
}

// DecodeArgsOf, with counters to set to zero for the kernel that comes after
// those of paged_attention.
paged_attention::DecodeArgs FirstKernelArgs(DType cache_dtype, bool is_followed,
                                            Arguments* arguments) {
  // Limit their number, because a single thread block sets them to zero.
  constexpr int64_t kMostZeroed = 4096;
  const int64_t counters =
      NumCounters(NumTileSlots(arguments->num_tokens, arguments->max_num_seqs,
                               arguments->group_size),
                  arguments->num_kv_heads);
  arguments->num_zeroed =
      is_followed ? std::min({counters, arguments->workspace_size, kMostZeroed})
                  : 0;
  paged_attention::DecodeArgs args = DecodeArgsOf(cache_dtype, *arguments);
  args.zeroed = reinterpret_cast<uint32_t*>(arguments->workspace);
  args.num_zeroed = static_cast<int>(arguments->num_zeroed);
  return args;
}

// Launches the kernels of paged_attention, for the rows for which HasOwnRow is
// true.
Status LaunchDecode(cudaStream_t stream, DType cache_dtype,
                    Variants::Second next, Arguments* arguments) {
  arguments->decoded = true;
  paged_attention::DecodeArgs args =
      FirstKernelArgs(cache_dtype, next != Variants::kNoMore, arguments);
  args.lets_next_start = next == Variants::kSm90;
  return paged_attention::LaunchDecode(
      stream, cache_dtype, arguments->head_dim,
      arguments->workspace + arguments->num_zeroed,
      arguments->workspace_size - arguments->num_zeroed, args);
}

Status LaunchFloat32(cudaStream_t stream, DType cache_dtype,
                     const Arguments& arguments) {
  const int64_t head_bytes =
      int64_t{arguments.head_dim} * (cache_dtype == F8E4M3FN ? 1 : 4);
  paged_attention::Float32Args args = {};
  args.query = static_cast<const float*>(arguments.q);
  args.key_cache = arguments.kv_pages;
  args.value_cache = static_cast<const char*>(arguments.kv_pages) + head_bytes;
  args.head_step = 2;
  args.block_tables = arguments.page_indices;
  args.context_lens = arguments.kv_lens;
  args.cu_q_lens = arguments.cu_q_lens;
  args.num_seqs = arguments.num_seqs;
  args.custom_mask = arguments.custom_mask;
  args.mask_words = arguments.mask_words;
  args.sinks = arguments.sinks;
  args.out = static_cast<float*>(arguments.out);
  args.lse = arguments.lse;
  args.num_rows = arguments.num_tokens;
  args.num_heads = arguments.num_q_heads;
  args.num_kv_heads = arguments.num_kv_heads;
  args.head_dim = arguments.head_dim;
  args.max_num_seqs = arguments.max_num_seqs;
  args.max_blocks = arguments.pages_per_seq;
  args.block_size = arguments.page_size;
  args.num_blocks = arguments.total_num_pages;
  args.sliding_window = arguments.sliding_window;
  args.causal = arguments.causal;
  args.logit_scale = arguments.logit_scale;
  args.soft_cap = arguments.soft_cap;
  args.value_scale = arguments.v_scale;
  return paged_attention::LaunchFloat32(stream, cache_dtype, args);
}

Status LaunchVariants(cudaStream_t stream, const Variants& variants,
                      DType cache_dtype, Arguments* arguments) {
  const bool cache_is_fp8 = cache_dtype == F8E4M3FN;
  switch (variants.first) {
    case Variants::kDecode:
      XLA_KERNEL_RETURN_IF_ERROR(
          LaunchDecode(stream, cache_dtype, variants.second, arguments));
      break;
    case Variants::kFewQueriesSplit:
      XLA_KERNEL_RETURN_IF_ERROR(LaunchFewQueriesSplit(
          stream,
          FirstKernelArgs(cache_dtype, variants.second != Variants::kNoMore,
                          arguments),
          arguments));
      break;
    case Variants::kNothing:
      break;
  }
  switch (variants.second) {
    case Variants::kNoMore:
      return Status::Ok();
    case Variants::kFloat32:
      return LaunchFloat32(stream, cache_dtype, *arguments);
    case Variants::kFewQueries:
    case Variants::kFewQueriesHalf:
      return LaunchFewQueries(stream, *arguments,
                              variants.second == Variants::kFewQueriesHalf,
                              DecodeArgsOf(cache_dtype, *arguments));
    case Variants::kSm90:
      return CudaStatus(LaunchSm90Kernel(stream, *arguments, cache_is_fp8));
    default:
      return CudaStatus(
          cache_is_fp8 ? LaunchGenericKernel<__nv_fp8_e4m3>(stream, *arguments)
          : arguments->is_bf16
              ? LaunchGenericKernel<__nv_bfloat16>(stream, *arguments)
              : LaunchGenericKernel<__half>(stream, *arguments));
  }
}

Status LaunchRaggedPagedAttention(cudaStream_t stream, AnyBuffer q,
                                  AnyBuffer kv_pages, Buffer<S32, 1> kv_lens,
                                  Buffer<S32, 2> page_indices,
                                  Buffer<S32, 1> cu_q_lens,
                                  Buffer<S32, 1> num_seqs,
                                  std::optional<Buffer<F32, 1>> sinks,
                                  std::optional<Buffer<S32, 2>> custom_mask,
                                  AnyResult out, Result<F32, 2> lse,
                                  Result<F32, 1> workspace,
                                  const RaggedPagedAttentionParams& params) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckLseRows(lse.dim(0), q.dim(0)));
  XLA_KERNEL_RETURN_IF_ERROR(CheckParams(params));
  const int64_t num_tokens = q.dim(0), num_q_heads = q.dim(1);
  const int64_t total_num_pages = kv_pages.dim(0), page_size = kv_pages.dim(1);
  const int64_t num_combined = kv_pages.dim(2), num_kv_heads = num_combined / 2;
  const int64_t max_num_seqs = page_indices.dim(0);
  const int64_t pages_per_seq = page_indices.dim(1);
  const bool cache_is_fp8 = kv_pages.dtype() == F8E4M3FN;
  if (out.size() == 0) return Status::Ok();
  if (!(params.soft_cap >= 0) || !std::isfinite(params.soft_cap)) {
    return Status::Error("soft_cap: expected 0 or more but got ",
                         params.soft_cap);
  }
  const int64_t head_dim = q.dim(2);
  XLA_KERNEL_RETURN_IF_ERROR(CheckFits("total_num_pages", total_num_pages));
  XLA_KERNEL_RETURN_IF_ERROR(CheckFits("pages_per_seq * page_size + 512",
                                       pages_per_seq * page_size + 512));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckFits("(max_num_batched_tokens + max_num_seqs + 1) * num_q_heads",
                (num_tokens + max_num_seqs + 1) * num_q_heads));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAligned("operand 0 (q)", q.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("operand 1 (kv_pages)", kv_pages.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("result 0 (out)", out.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("result 2 (workspace)", workspace.untyped_data()));

  Arguments arguments = {};
  arguments.q = q.untyped_data();
  arguments.kv_pages = kv_pages.untyped_data();
  arguments.kv_lens = kv_lens.data();
  arguments.page_indices = page_indices.data();
  arguments.cu_q_lens = cu_q_lens.data();
  arguments.num_seqs = num_seqs.data();
  arguments.sinks = sinks ? sinks->data() : nullptr;
  arguments.custom_mask = custom_mask ? custom_mask->data() : nullptr;
  arguments.mask_words =
      custom_mask ? static_cast<int>(custom_mask->dim(1)) : 0;
  arguments.out = out.untyped_data();
  arguments.lse = lse.size() > 0 ? lse.data() : nullptr;
  arguments.workspace = workspace.data();
  arguments.workspace_size = workspace.size();
  arguments.is_bf16 = q.dtype() == BF16;
  arguments.q_is_float8 = params.q_is_float8;
  arguments.num_tokens = static_cast<int>(num_tokens);
  arguments.num_q_heads = static_cast<int>(num_q_heads);
  arguments.num_kv_heads = static_cast<int>(num_kv_heads);
  arguments.group_size = static_cast<int>(num_q_heads / num_kv_heads);
  arguments.head_dim = static_cast<int>(head_dim);
  arguments.max_num_seqs = static_cast<int>(max_num_seqs);
  arguments.pages_per_seq = static_cast<int>(pages_per_seq);
  arguments.page_size = static_cast<int>(page_size);
  arguments.total_num_pages = static_cast<int>(total_num_pages);
  arguments.logit_scale = static_cast<float>(params.sm_scale * params.k_scale);
  arguments.soft_cap = static_cast<float>(params.soft_cap);
  arguments.v_scale = static_cast<float>(params.v_scale);
  arguments.causal = params.causal;
  arguments.max_q_len =
      params.max_q_len == 0
          ? INT_MAX
          : static_cast<int>(std::min<int64_t>(params.max_q_len, INT_MAX));
  arguments.sliding_window =
      params.sliding_window == 0
          ? INT_MAX
          : static_cast<int>(std::min<int64_t>(params.sliding_window, INT_MAX));

  if (params.report_out_of_range) {
    ReportOutOfRange<<<static_cast<unsigned>(max_num_seqs + 1), 128, 0,
                       stream>>>(arguments);
    XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaGetLastError()));
  }
  Device device;
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(GetDevice(&device)));
  const Variants variants =
      ChooseVariants(arguments, device, q.dtype() == F32, cache_is_fp8);
  return LaunchVariants(stream, variants, kv_pages.dtype(), &arguments);
}

}  // namespace
}  // namespace torch_xla_ext::ragged

XLA_KERNEL_CUDA(XlaGpuRaggedPagedAttention,
                torch_xla_ext::ragged::kRaggedPagedAttention,
                torch_xla_ext::ragged::LaunchRaggedPagedAttention,
                torch_xla_ext::kCommandBufferCompatible);
