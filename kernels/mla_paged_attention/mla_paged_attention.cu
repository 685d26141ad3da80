// XlaGpuMlaPagedAttention for CUDA: checks, the choice of a kernel, and
// launches.
#include <cuda_runtime.h>

#include <climits>
#include <cstdio>

#include "kernels/common/checks.h"
#include "kernels/common/device.h"
#include "kernels/mla_paged_attention/attend.cuh"
#include "kernels/mla_paged_attention/mla_paged_attention.h"
#include "torch_xla_ext/cuda_status.h"

namespace torch_xla_ext::mla {
namespace {

// Which kernel serves a call: the first row that fits.
//
//   kernel     cache      GPU                 block_size         num_heads
//   kSm90      BF16, F16  9.0                 8, 16, 32, n * 64  all
//   kManyRows  all        8.0, 9.0, 10.x      all                17 or more
//   kFewRows   all        8.0 and later       all                all
//
// kSm90 is the kernel for Hopper (attend_sm90.cu), which needs a positive
// scale; the others are AttendKernel (attend.cuh). With few heads, most of the
// large tile of kManyRows would be empty; and a GPU of compute capability 12
// has only enough shared memory for the small tile.
enum class Variant { kSm90, kManyRows, kFewRows };

Variant ChooseVariant(const Device& device, bool cache_is_f8,
                      const Arguments& arguments) {
  const int size = arguments.block_size;
  if (!cache_is_f8 && device.IsSm90() && arguments.logit_scale > 0 &&
      arguments.num_blocks > 0 && size % 8 == 0 &&
      (kSm90Tokens % size == 0 || size % kSm90Tokens == 0)) {
    return Variant::kSm90;
  }
  const size_t bytes =
      cache_is_f8 ? sizeof(Shape<__half, __nv_fp8_e4m3, kManyRows>::Memory)
                  : sizeof(Shape<Bf16OrF16, Bf16OrF16, kManyRows>::Memory);
  return arguments.num_heads > kFewRows &&
                 device.shared_memory_per_block >= static_cast<int>(bytes)
             ? Variant::kManyRows
             : Variant::kFewRows;
}

template <typename Shape>
Status Launch(cudaStream_t stream, const Arguments& arguments) {
  const auto kernel = AttendKernel<Shape>;
  constexpr int kBytes = sizeof(typename Shape::Memory);
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes)));
  const dim3 grid((arguments.num_heads + Shape::kRows - 1) / Shape::kRows,
                  arguments.parts, arguments.num_seqs);
  kernel<<<grid, Shape::kThreads, kBytes, stream>>>(arguments);
  return CudaStatus(cudaGetLastError());
}

// Combines the parts of split contexts, always in the same order. Grid:
// [num_heads, num_seqs]; a thread has four dimensions.
__global__ void __launch_bounds__(kValueDim / 4)
    CombineKernel(const __grid_constant__ Arguments arguments) {
  const int seq = blockIdx.y;
  const int tiles = TilesOf(arguments, ContextOf(arguments, seq));
  const int part_tiles = PartTiles(arguments, tiles);
  if (tiles <= part_tiles) return;
  const int parts = (tiles + part_tiles - 1) / part_tiles;
  const int64_t row = int64_t{1} * seq * arguments.num_heads + blockIdx.x;
  const int64_t first = row * arguments.parts;
  const int dim = threadIdx.x * 4;
  PartialSum total;
#pragma unroll 8
  for (int i = 0; i < parts; ++i) {
    total.Add(arguments.partial_stats[first + i],
              *reinterpret_cast<const float4*>(arguments.partial_out +
                                               (first + i) * kValueDim + dim));
  }
  const float factor = Finish(arguments, row, dim, total.max, total.sum);
  const float4& sum = total.values;
  reinterpret_cast<uint2*>(arguments.out)[(row * kValueDim + dim) / 4] =
      make_uint2(
          Pack<Bf16OrF16>(sum.x * factor, sum.y * factor, arguments.is_bf16),
          Pack<Bf16OrF16>(sum.z * factor, sum.w * factor, arguments.is_bf16));
}

Status Combine(cudaStream_t stream, const Arguments& arguments) {
  if (arguments.parts == 1) return Status::Ok();
  const dim3 rows(arguments.num_heads, arguments.num_seqs);
  CombineKernel<<<rows, kValueDim / 4, 0, stream>>>(arguments);
  return CudaStatus(cudaGetLastError());
}

// On Hopper, where speed was measured, another kernel serves 16-bit caches. So
// this one is compiled once for BF16 and F16.
template <int kRows>
Status LaunchRows(cudaStream_t stream, bool cache_is_f8,
                  const Arguments& arguments) {
  const auto launch = !cache_is_f8 ? Launch<Shape<Bf16OrF16, Bf16OrF16, kRows>>
                      : arguments.is_bf16
                          ? Launch<Shape<__nv_bfloat16, __nv_fp8_e4m3, kRows>>
                          : Launch<Shape<__half, __nv_fp8_e4m3, kRows>>;
  return launch(stream, arguments);
}

Status LaunchVariant(cudaStream_t stream, Variant variant, bool cache_is_f8,
                     const Arguments& arguments) {
  switch (variant) {
    case Variant::kSm90:
      return CudaStatus(LaunchSm90Kernel(stream, arguments));
    case Variant::kManyRows:
      return LaunchRows<kManyRows>(stream, cache_is_f8, arguments);
    default:
      return LaunchRows<kFewRows>(stream, cache_is_f8, arguments);
  }
}

// One thread per sequence: a debugging aid need not be fast.
__global__ void ReportOutOfRange(const Arguments arguments) {
  const int seq = blockIdx.x * blockDim.x + threadIdx.x;
  if (seq >= arguments.num_seqs) return;
  const int context = arguments.context_lens[seq];
  if (context < 0 || context > arguments.max_tokens) {
    printf("XlaGpuMlaPagedAttention: context_lens[%d] = %d is not in [0, %d]\n",
           seq, context, arguments.max_tokens);
  }
  const int tokens = ContextOf(arguments, seq);
  for (int i = 0; int64_t{1} * i * arguments.block_size < tokens; ++i) {
    const int block =
        arguments.block_tables[int64_t{1} * seq * arguments.max_blocks + i];
    if (block < 0 || block >= arguments.num_blocks) {
      printf(
          "XlaGpuMlaPagedAttention: block_tables[%d][%d] = %d is not in [0, "
          "%d)\n",
          seq, i, block, arguments.num_blocks);
    }
  }
}

Status CheckAtMost(const char* what, int64_t value, int64_t limit) {
  if (value <= limit) return Status::Ok();
  return Status::Error("expected ", what, " to be at most ", limit, " but got ",
                       value);
}

Status LaunchMlaPagedAttention(cudaStream_t stream, AnyBuffer query,
                               AnyBuffer kv_cache, Buffer<S32, 2> block_tables,
                               Buffer<S32, 1> context_lens, AnyResult out,
                               Result<F32, 2> lse, Result<F32, 1> workspace,
                               const MlaPagedAttentionParams& params) {
  const int64_t num_seqs = query.dim(0), num_heads = query.dim(1);
  XLA_KERNEL_RETURN_IF_ERROR(CheckLseRows(lse.dim(0), num_seqs));
  if (out.size() == 0) return Status::Ok();
  const int64_t max_tokens = block_tables.dim(1) * kv_cache.dim(1);
  XLA_KERNEL_RETURN_IF_ERROR(CheckAtMost("num_seqs", num_seqs, 65535));
  XLA_KERNEL_RETURN_IF_ERROR(CheckAtMost("num_heads", num_heads, 1 << 16));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAtMost("num_blocks", kv_cache.dim(0), INT_MAX));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAtMost("max_blocks * block_size", max_tokens, INT_MAX - 65536));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("operand 0 (query)", query.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("operand 1 (kv_cache)", kv_cache.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("result 0 (out)", out.untyped_data()));
  XLA_KERNEL_RETURN_IF_ERROR(
      CheckAligned("result 2 (workspace)", workspace.untyped_data()));
  Device device = {};
  XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(GetDevice(&device)));

  Arguments arguments = {};
  arguments.query = query.untyped_data();
  arguments.kv_cache = kv_cache.untyped_data();
  arguments.block_tables = block_tables.data();
  arguments.context_lens = context_lens.data();
  arguments.out = out.untyped_data();
  arguments.lse = lse.size() > 0 ? lse.data() : nullptr;
  arguments.is_bf16 = query.dtype() == BF16;
  arguments.num_seqs = static_cast<int>(num_seqs);
  arguments.num_heads = static_cast<int>(num_heads);
  arguments.num_blocks = static_cast<int>(kv_cache.dim(0));
  arguments.block_size = static_cast<int>(kv_cache.dim(1));
  arguments.max_blocks = static_cast<int>(block_tables.dim(1));
  arguments.max_tokens = static_cast<int>(max_tokens);
  arguments.logit_scale =
      static_cast<float>(params.scale * params.kv_scale * kLog2e);
  arguments.kv_scale = static_cast<float>(params.kv_scale);
  const bool is_f8 = kv_cache.dtype() == F8E4M3FN;
  const Variant variant = ChooseVariant(device, is_f8, arguments);
  const bool is_sm90 = variant == Variant::kSm90;
  arguments.tile_tokens = is_sm90 ? kSm90Tokens : kTokens;
  const int64_t part_floats = PartFloats(num_seqs, num_heads);
  // The kernel for Hopper has one block per multiprocessor, like kManyRows.
  const int64_t wanted =
      WantedParts(device.multiprocessors, num_seqs,
                  is_sm90 ? std::max<int64_t>(num_heads, kManyRows) : num_heads,
                  max_tokens);
  const int64_t parts = std::min(wanted, workspace.size() / part_floats);
  arguments.parts = static_cast<int>(std::max<int64_t>(parts, 1));
  arguments.partial_out = workspace.data();
  arguments.partial_stats = reinterpret_cast<float2*>(
      workspace.data() + num_seqs * num_heads * arguments.parts * kValueDim);

  if (params.report_out_of_range) {
    ReportOutOfRange<<<(arguments.num_seqs + 127) / 128, 128, 0, stream>>>(
        arguments);
    XLA_KERNEL_RETURN_IF_ERROR(CudaStatus(cudaGetLastError()));
  }
  XLA_KERNEL_RETURN_IF_ERROR(LaunchVariant(stream, variant, is_f8, arguments));
  return Combine(stream, arguments);
}

}  // namespace
}  // namespace torch_xla_ext::mla

XLA_KERNEL_CUDA(XlaGpuMlaPagedAttention, torch_xla_ext::mla::kMlaPagedAttention,
                torch_xla_ext::mla::LaunchMlaPagedAttention,
                torch_xla_ext::kCommandBufferCompatible);
