// XlaGpuMlaPagedAttention for the CPU.
#include <algorithm>

#include "kernels/common/checks.h"
#include "kernels/common/host_attention.h"
#include "kernels/mla_paged_attention/mla_paged_attention.h"

namespace torch_xla_ext::mla {
namespace {

constexpr char kBlockTables[] = "XlaGpuMlaPagedAttention: block_tables";
constexpr char kContextLens[] = "XlaGpuMlaPagedAttention: context_lens";

template <typename T, typename C>
void MlaPagedAttention(AnyBuffer query, AnyBuffer kv_cache,
                       AnyBuffer block_tables, AnyBuffer context_lens,
                       AnyResult out, AnyResult lse,
                       const MlaPagedAttentionParams& params) {
  const int64_t num_heads = query.dim(1);
  const int64_t num_blocks = kv_cache.dim(0), block_size = kv_cache.dim(1);
  const int64_t max_blocks = block_tables.dim(1);
  const HostPages<C> pages = {kv_cache.data<C>(), num_blocks, block_size,
                              block_size * kKeyDim, kKeyDim};
  const LogitOptions options{static_cast<float>(params.scale * params.kv_scale),
                             0};
  std::vector<float> row(kKeyDim), attended;
  for (int64_t s = 0; s < query.dim(0); ++s) {
    const int64_t length = ClampAndReport(
        context_lens.data<int32_t>()[s], 0, max_blocks * block_size,
        params.report_out_of_range, kContextLens, s);
    const PageTable table{block_tables.data<int32_t>() + s * max_blocks,
                          block_size, num_blocks};
    if (params.report_out_of_range) table.Report(kBlockTables, s, 0, length);
    const std::vector<int64_t> tokens = table.Tokens(0, length);
    const std::vector<float> rows = GatherRows(pages, table, tokens, kKeyDim);
    for (int64_t h = 0; h < num_heads; ++h) {
      const int64_t index = s * num_heads + h;
      ToFloats(query.data<T>() + index * kKeyDim, kKeyDim, row.data());
      // As values, only the first kValueDim elements of a row are used.
      const float row_lse = Attend(
          row.data(), length - 1, tokens, 0, tokens.size(),
          [](int64_t token) { return true; }, rows, rows, kKeyDim, options,
          -INFINITY, &attended);
      if (lse.size() > 0) lse.data<float>()[index] = row_lse;
      for (int64_t d = 0; d < kValueDim; ++d) {
        out.data<T>()[index * kValueDim + d] =
            FromFloat<T>(attended[d] * static_cast<float>(params.kv_scale));
      }
    }
  }
}

Status MlaPagedAttentionOnHost(AnyBuffer query, AnyBuffer kv_cache,
                               AnyBuffer block_tables, AnyBuffer context_lens,
                               AnyResult out, AnyResult lse,
                               AnyResult workspace,
                               const MlaPagedAttentionParams& params) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckLseRows(lse.dim(0), query.dim(0)));
  std::fill_n(workspace.data<float>(), workspace.size(), 0.0f);
  VisitFloat(query.dtype(), [&](auto t) {
    VisitFloat(kv_cache.dtype(), [&](auto c) {
      MlaPagedAttention<decltype(t), decltype(c)>(
          query, kv_cache, block_tables, context_lens, out, lse, params);
    });
  });
  return Status::Ok();
}

// More multiprocessors than any GPU has.
constexpr int64_t kMaxMultiprocessors = 256;

int64_t WorkspaceSize(const Sizes& sizes) {
  const int64_t num_seqs = sizes["num_seqs"], num_heads = sizes["num_heads"];
  const int64_t parts = WantedParts(kMaxMultiprocessors, num_seqs, num_heads,
                                    sizes["max_blocks"] * sizes["block_size"]);
  return parts < 2 ? 1 : parts * PartFloats(num_seqs, num_heads);
}

}  // namespace
}  // namespace torch_xla_ext::mla

XLA_KERNEL_HOST(XlaGpuMlaPagedAttention, torch_xla_ext::mla::kMlaPagedAttention,
                torch_xla_ext::mla::MlaPagedAttentionOnHost);
XLA_KERNEL_SIZE(XlaGpuMlaPagedAttention, torch_xla_ext::mla::kMlaPagedAttention,
                workspace_size, torch_xla_ext::mla::WorkspaceSize);
