// XlaGpuPagedAttention for the CPU.
#include <algorithm>
#include <optional>

#include "kernels/common/checks.h"
#include "kernels/common/host_attention.h"
#include "kernels/paged_attention/paged_attention.h"
#include "kernels/paged_attention/workspace.h"

namespace torch_xla_ext::paged_attention {
namespace {

constexpr char kBlockTables[] = "XlaGpuPagedAttention: block_tables";
constexpr char kContextLens[] = "XlaGpuPagedAttention: context_lens";

template <typename T, typename C>
void PagedAttention(AnyBuffer query, AnyBuffer key_cache, AnyBuffer value_cache,
                    AnyBuffer block_tables, AnyBuffer context_lens,
                    const float* alibi_slopes, const float* sinks,
                    AnyResult out, AnyResult lse,
                    const PagedAttentionParams& params) {
  const int64_t num_heads = query.dim(1), head_dim = query.dim(2);
  const int64_t num_blocks = key_cache.dim(0), block_size = key_cache.dim(1);
  const int64_t num_kv_heads = key_cache.dim(2);
  const int64_t max_blocks = block_tables.dim(1);
  if (num_heads == 0) return;
  const int64_t heads_per_kv_head = num_heads / num_kv_heads;
  const auto pages = [&](AnyBuffer cache, int64_t kv_head) {
    const int64_t token_stride = num_kv_heads * head_dim;
    return HostPages<C>{cache.data<C>() + kv_head * head_dim, num_blocks,
                        block_size, block_size * token_stride, token_stride};
  };
  std::vector<float> row(head_dim), attended;
  for (int64_t s = 0; s < query.dim(0); ++s) {
    const int64_t length = ClampAndReport(
        context_lens.data<int32_t>()[s], 0, max_blocks * block_size,
        params.report_out_of_range, kContextLens, s);
    const PageTable table{block_tables.data<int32_t>() + s * max_blocks,
                          block_size, num_blocks};
    const int64_t begin =
        params.sliding_window > 0
            ? std::max<int64_t>(0, length - params.sliding_window)
            : 0;
    if (params.report_out_of_range) {
      table.Report(kBlockTables, s, begin, length);
    }
    const std::vector<int64_t> tokens = table.Tokens(begin, length);
    for (int64_t g = 0; g < num_kv_heads; ++g) {
      const std::vector<float> keys =
          GatherRows(pages(key_cache, g), table, tokens, head_dim);
      const std::vector<float> values =
          GatherRows(pages(value_cache, g), table, tokens, head_dim);
      for (int64_t h = g * heads_per_kv_head; h < (g + 1) * heads_per_kv_head;
           ++h) {
        const int64_t offset = (s * num_heads + h) * head_dim;
        ToFloats(query.data<T>() + offset, head_dim, row.data());
        const LogitOptions options{
            static_cast<float>(params.scale * params.key_scale),
            static_cast<float>(params.soft_cap),
            alibi_slopes == nullptr ? 0 : alibi_slopes[h]};
        const float row_lse = Attend(
            row.data(), length - 1, tokens, 0, tokens.size(),
            [](int64_t token) { return true; }, keys, values, head_dim, options,
            sinks == nullptr ? -INFINITY : sinks[h], &attended);
        if (lse.size() > 0) lse.data<float>()[s * num_heads + h] = row_lse;
        for (int64_t d = 0; d < head_dim; ++d) {
          out.data<T>()[offset + d] = FromFloat<T>(
              attended[d] * static_cast<float>(params.value_scale));
        }
      }
    }
  }
}

Status PagedAttentionOnHost(AnyBuffer query, AnyBuffer key_cache,
                            AnyBuffer value_cache, AnyBuffer block_tables,
                            AnyBuffer context_lens,
                            std::optional<AnyBuffer> alibi_slopes,
                            std::optional<AnyBuffer> sinks, AnyResult out,
                            AnyResult lse, AnyResult workspace,
                            const PagedAttentionParams& params) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckLseRows(lse.dim(0), query.dim(0)));
  std::fill_n(workspace.data<float>(), workspace.size(), 0.0f);
  VisitFloat(query.dtype(), [&](auto t) {
    VisitFloat(key_cache.dtype(), [&](auto c) {
      PagedAttention<decltype(t), decltype(c)>(
          query, key_cache, value_cache, block_tables, context_lens,
          alibi_slopes ? alibi_slopes->data<float>() : nullptr,
          sinks ? sinks->data<float>() : nullptr, out, lse, params);
    });
  });
  return Status::Ok();
}

int64_t SizeOfWorkspace(const Sizes& sizes) {
  return WorkspaceSize(sizes["num_heads"], sizes["num_kv_heads"],
                       sizes["head_dim"]);
}

}  // namespace
}  // namespace torch_xla_ext::paged_attention

XLA_KERNEL_HOST(XlaGpuPagedAttention,
                torch_xla_ext::paged_attention::kPagedAttention,
                torch_xla_ext::paged_attention::PagedAttentionOnHost);
XLA_KERNEL_SIZE(XlaGpuPagedAttention,
                torch_xla_ext::paged_attention::kPagedAttention, workspace_size,
                torch_xla_ext::paged_attention::SizeOfWorkspace);
