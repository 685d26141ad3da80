// XlaGpuRaggedPagedAttention for the CPU.
#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/common/checks.h"
#include "kernels/common/host_attention.h"
#include "kernels/paged_attention/workspace.h"
#include "kernels/ragged_paged_attention/ragged_paged_attention.h"
#include "kernels/ragged_paged_attention/workspace.h"

namespace torch_xla_ext::ragged {
namespace {

// A sequence, clamped to the valid range: the query rows [first_row, end_row)
// are those of the last of its kv_len tokens. The first new token is first_new,
// which is negative if there were more rows than tokens.
struct Sequence {
  int64_t first_row, end_row, kv_len, first_new;
};

// The bits of custom_mask, which may be absent.
struct Mask {
  const int32_t* bits;
  int64_t words;  // per row

  // Whether row `row` sees the new token `token` of its sequence.
  bool Shows(int64_t row, int64_t token) const {
    if (bits == nullptr || token < 0 || token >= words * 32) return true;
    return bits[row * words + token / 32] >> token % 32 & 1;
  }
};

Sequence ReadSequence(AnyBuffer kv_lens, AnyBuffer cu_q_lens, int64_t s,
                      int64_t num_rows, int64_t max_kv_len, bool causal,
                      bool report) {
  const int32_t* ends = cu_q_lens.data<int32_t>();
  const auto clamp = [&](int64_t value, int64_t low, int64_t high,
                         const char* name, int64_t index) {
    return ClampAndReport(value, low, high, report, name, index);
  };
  Sequence sequence;
  sequence.kv_len = clamp(kv_lens.data<int32_t>()[s], 0, max_kv_len,
                          "XlaGpuRaggedPagedAttention: kv_lens", s);
  sequence.first_row =
      clamp(ends[s], 0, num_rows, "XlaGpuRaggedPagedAttention: cu_q_lens", s);
  sequence.end_row = clamp(ends[s + 1], sequence.first_row, num_rows,
                           "XlaGpuRaggedPagedAttention: cu_q_lens", s + 1);
  const int64_t num_queries = sequence.end_row - sequence.first_row;
  sequence.first_new = sequence.kv_len - num_queries;
  if (causal && num_queries > sequence.kv_len) {
    if (report) {
      std::fprintf(stderr,
                   "XlaGpuRaggedPagedAttention: sequence %lld has %lld query "
                   "rows, but kv_lens is %lld: "
                   "the first ones give zeros\n",
                   static_cast<long long>(s),
                   static_cast<long long>(num_queries),
                   static_cast<long long>(sequence.kv_len));
    }
    sequence.first_row = sequence.end_row - sequence.kv_len;
  }
  return sequence;
}

template <typename T, typename C>
void RaggedPagedAttention(AnyBuffer q, AnyBuffer kv_pages, AnyBuffer kv_lens,
                          AnyBuffer page_indices, AnyBuffer cu_q_lens,
                          AnyBuffer num_seqs, const float* sinks, Mask mask,
                          AnyResult out, AnyResult lse,
                          const RaggedPagedAttentionParams& params) {
  const int64_t num_heads = q.dim(1), head_dim = q.dim(2);
  const int64_t num_pages = kv_pages.dim(0), page_size = kv_pages.dim(1);
  const int64_t num_combined_heads = kv_pages.dim(2);
  const int64_t num_kv_heads = num_combined_heads / 2;
  if (num_heads == 0) return;
  const int64_t heads_per_kv_head = num_heads / num_kv_heads;
  const int64_t pages_per_seq = page_indices.dim(1);
  const bool report = params.report_out_of_range;
  const auto pages = [&](int64_t combined_head) {
    const int64_t token_stride = num_combined_heads * head_dim;
    return HostPages<C>{kv_pages.data<C>() + combined_head * head_dim,
                        num_pages, page_size, page_size * token_stride,
                        token_stride};
  };
  const int64_t count =
      ClampAndReport(num_seqs.data<int32_t>()[0], 0, kv_lens.dim(0), report,
                     "XlaGpuRaggedPagedAttention: num_seqs", 0);
  const LogitOptions options{
      static_cast<float>(params.sm_scale * params.k_scale),
      static_cast<float>(params.soft_cap)};
  std::vector<float> row(head_dim), attended;
  for (int64_t s = 0; s < count; ++s) {
    const Sequence sequence =
        ReadSequence(kv_lens, cu_q_lens, s, q.dim(0), pages_per_seq * page_size,
                     params.causal, report);
    const int64_t q_len = sequence.end_row - sequence.first_row;
    if (report && params.max_q_len > 0 && q_len > params.max_q_len) {
      std::fprintf(stderr,
                   "XlaGpuRaggedPagedAttention: sequence %lld: expected at "
                   "most max_q_len=%lld query rows but got %lld\n",
                   static_cast<long long>(s),
                   static_cast<long long>(params.max_q_len),
                   static_cast<long long>(q_len));
    }
    if (q_len == 0) continue;
    const auto position_of = [&](int64_t row) {
      return params.causal ? sequence.kv_len - (sequence.end_row - row)
                           : sequence.kv_len - 1;
    };
    const auto window_begin = [&](int64_t position) {
      return params.sliding_window > 0
                 ? std::max<int64_t>(0, position - params.sliding_window + 1)
                 : 0;
    };
    const PageTable table{page_indices.data<int32_t>() + s * pages_per_seq,
                          page_size, num_pages};
    const int64_t begin = window_begin(position_of(sequence.first_row));
    if (report) {
      table.Report("XlaGpuRaggedPagedAttention: page_indices", s, begin,
                   sequence.kv_len);
    }
    const std::vector<int64_t> tokens = table.Tokens(begin, sequence.kv_len);
    const auto index_of = [&](int64_t token) {
      return std::lower_bound(tokens.begin(), tokens.end(), token) -
             tokens.begin();
    };
    for (int64_t g = 0; g < num_kv_heads; ++g) {
      const std::vector<float> keys =
          GatherRows(pages(2 * g), table, tokens, head_dim);
      const std::vector<float> values =
          GatherRows(pages(2 * g + 1), table, tokens, head_dim);
      for (int64_t i = sequence.first_row; i < sequence.end_row; ++i) {
        const int64_t position = position_of(i);
        const int64_t first = index_of(window_begin(position));
        const int64_t last = index_of(position + 1);
        for (int64_t h = g * heads_per_kv_head; h < (g + 1) * heads_per_kv_head;
             ++h) {
          const int64_t offset = (i * num_heads + h) * head_dim;
          ToFloats(q.data<T>() + offset, head_dim, row.data());
          const float row_lse = Attend(
              row.data(), position, tokens, first, last,
              [&](int64_t token) {
                return mask.Shows(i, token - sequence.first_new);
              },
              keys, values, head_dim, options,
              sinks == nullptr ? -INFINITY : sinks[h], &attended);
          if (lse.size() > 0) lse.data<float>()[i * num_heads + h] = row_lse;
          for (int64_t d = 0; d < head_dim; ++d) {
            out.data<T>()[offset + d] =
                FromFloat<T>(attended[d] * static_cast<float>(params.v_scale));
          }
        }
      }
    }
  }
}

Status RaggedPagedAttentionOnHost(
    AnyBuffer q, AnyBuffer kv_pages, AnyBuffer kv_lens, AnyBuffer page_indices,
    AnyBuffer cu_q_lens, AnyBuffer num_seqs, std::optional<AnyBuffer> sinks,
    std::optional<AnyBuffer> custom_mask, AnyResult out, AnyResult lse,
    AnyResult workspace, const RaggedPagedAttentionParams& params) {
  XLA_KERNEL_RETURN_IF_ERROR(CheckLseRows(lse.dim(0), q.dim(0)));
  XLA_KERNEL_RETURN_IF_ERROR(CheckParams(params));
  const float* sink = sinks ? sinks->data<float>() : nullptr;
  Mask mask = {};
  if (custom_mask) mask = {custom_mask->data<int32_t>(), custom_mask->dim(1)};
  for (int64_t i = 0; i < lse.size(); ++i) {
    lse.data<float>()[i] = sink == nullptr ? -INFINITY : sink[i % q.dim(1)];
  }
  std::memset(out.untyped_data(), 0, out.size_bytes());
  std::fill_n(workspace.data<float>(), workspace.size(), 0.0f);
  VisitFloat(q.dtype(), [&](auto t) {
    VisitFloat(kv_pages.dtype(), [&](auto c) {
      RaggedPagedAttention<decltype(t), decltype(c)>(
          q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, sink, mask,
          out, lse, params);
    });
  });
  return Status::Ok();
}

// The minimum number of tokens in a part of a context, and the maximum number
// of floats of the parts' results.
constexpr int64_t kMinPartSize = 256;
constexpr int64_t kMaxWorkspaceSize = 1 << 23;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Two parts per thread block of the generic kernel, each for the query rows of
// a tile and one kv head: a result, its maximum and its sum for each row, and 8
// more bytes. In addition, one counter per block.
int64_t GenericWorkspaceSize(const Sizes& sizes) {
  const int64_t num_kv_heads = std::max<int64_t>(sizes["num_kv_heads"], 1);
  const int64_t rows =
      sizes["max_num_batched_tokens"] * (sizes["num_q_heads"] / num_kv_heads);
  const int64_t max_parts =
      CeilDivide(sizes["pages_per_seq"] * sizes["page_size"], kMinPartSize);
  if (max_parts < 2) return 1;
  const int64_t part_size = 2 * num_kv_heads *
                            std::min<int64_t>(rows, kTileRows) *
                            (sizes["head_dim"] + 4);
  const int64_t parts = std::min(
      {(rows / kTileRows + sizes["max_num_seqs"]) * max_parts,
       kMaxBlocks / num_kv_heads,
       (kMaxWorkspaceSize - kMaxBlocks) / std::max<int64_t>(part_size, 1)});
  return parts < 2 ? 1 : kMaxBlocks + parts * part_size;
}

int64_t TileSlots(const Sizes& sizes) {
  const int64_t num_kv_heads = std::max<int64_t>(sizes["num_kv_heads"], 1);
  return NumTileSlots(
      sizes["max_num_batched_tokens"], sizes["max_num_seqs"],
      std::max<int64_t>(sizes["num_q_heads"] / num_kv_heads, 1));
}

// Each place of the Hopper kernel (sm90_split.cuh) has the same number of
// parts. A part has a result, its maximum and its sum for each query head.
int64_t HopperWorkspaceSize(const Sizes& sizes) {
  const int64_t max_num_seqs = sizes["max_num_seqs"];
  const int64_t places =
      max_num_seqs +
      NumTokenPlaces(sizes["max_num_batched_tokens"], max_num_seqs);
  const int64_t part_size =
      places * PartSize(sizes["num_q_heads"], sizes["head_dim"]);
  const int64_t num_parts = std::min(
      {int64_t{kMaxParts}, kMaxWorkspaceSize / std::max<int64_t>(part_size, 1),
       CeilDivide(sizes["pages_per_seq"] * sizes["page_size"], kMinPartSize)});
  if (num_parts < 2) return 2;  // only the counter of tiles
  return SplitHeader(TileSlots(sizes), sizes["num_kv_heads"]) +
         num_parts * part_size;
}

// Counters, and space for the parts of long contexts until the kernels combine
// them.
int64_t WorkspaceSize(const Sizes& sizes) {
  int64_t size = GenericWorkspaceSize(sizes);
  const int64_t num_kv_heads = sizes["num_kv_heads"];
  const bool is_step = sizes["max_num_batched_tokens"] <= sizes["max_num_seqs"];
  const bool is_long =
      sizes["pages_per_seq"] * sizes["page_size"] > kMinPartSize;
  if (sizes["head_dim"] == 128) {
    size = std::max(size, HopperWorkspaceSize(sizes));
  }
  // Shapes that FewQueriesSplitKernel may serve, with contexts worth splitting.
  if (sizes["head_dim"] == 128 && sizes.dtype("kv_pages") == sizes.dtype("q") &&
      !is_step && is_long) {
    const int64_t rows = FewQueriesRows(
        sizes["max_num_batched_tokens"], sizes["max_num_seqs"],
        sizes["num_q_heads"] / std::max<int64_t>(num_kv_heads, 1));
    if (rows > 0) {
      size = std::max(
          size, NumCounters(TileSlots(sizes), num_kv_heads) +
                    paged_attention::WorkspaceOfRows(rows, sizes["head_dim"]));
    }
  }
  // Shapes that may be a decode step (see MayBeDecode), with contexts worth
  // splitting.
  if (is_step && is_long) {
    size = std::max(
        size, NumCounters(TileSlots(sizes), num_kv_heads) +
                  paged_attention::WorkspaceSize(
                      sizes["num_q_heads"], num_kv_heads, sizes["head_dim"]));
  }
  return size;
}

}  // namespace
}  // namespace torch_xla_ext::ragged

XLA_KERNEL_HOST(XlaGpuRaggedPagedAttention,
                torch_xla_ext::ragged::kRaggedPagedAttention,
                torch_xla_ext::ragged::RaggedPagedAttentionOnHost);
XLA_KERNEL_SIZE(XlaGpuRaggedPagedAttention,
                torch_xla_ext::ragged::kRaggedPagedAttention, workspace_size,
                torch_xla_ext::ragged::WorkspaceSize);
