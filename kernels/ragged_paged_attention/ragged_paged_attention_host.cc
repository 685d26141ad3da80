// XlaGpuRaggedPagedAttention for the CPU.
#include <cstring>

#include "kernels/common/host_attention.h"
#include "kernels/ragged_paged_attention/ragged_paged_attention.h"

namespace torch_xla_ext {
namespace {

// A sequence, as far as the device data can be trusted: the query rows
// [first_row, end_row) are those of its last tokens, of kv_len.
struct Sequence {
  int64_t first_row, end_row, kv_len;
};

Sequence ReadSequence(AnyBuffer kv_lens, AnyBuffer cu_q_lens, int64_t s,
                      int64_t num_rows, int64_t max_kv_len, bool report) {
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
  if (num_queries > sequence.kv_len) {
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
                          AnyBuffer num_seqs, AnyResult out,
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
    const Sequence sequence = ReadSequence(kv_lens, cu_q_lens, s, q.dim(0),
                                           pages_per_seq * page_size, report);
    if (sequence.first_row == sequence.end_row) continue;
    const int64_t first_position =
        sequence.kv_len - (sequence.end_row - sequence.first_row);
    const auto window_begin = [&](int64_t position) {
      return params.sliding_window > 0
                 ? std::max<int64_t>(0, position - params.sliding_window + 1)
                 : 0;
    };
    const PageTable table{page_indices.data<int32_t>() + s * pages_per_seq,
                          page_size, num_pages};
    const int64_t begin = window_begin(first_position);
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
        const int64_t position = first_position + i - sequence.first_row;
        const int64_t first = index_of(window_begin(position));
        const int64_t last = index_of(position + 1);
        for (int64_t h = g * heads_per_kv_head; h < (g + 1) * heads_per_kv_head;
             ++h) {
          const int64_t offset = (i * num_heads + h) * head_dim;
          ToFloats(q.data<T>() + offset, head_dim, row.data());
          Attend(row.data(), position, tokens, first, last, keys, values,
                 head_dim, options, &attended);
          for (int64_t d = 0; d < head_dim; ++d) {
            out.data<T>()[offset + d] =
                FromFloat<T>(attended[d] * static_cast<float>(params.v_scale));
          }
        }
      }
    }
  }
}

Status RaggedPagedAttentionOnHost(AnyBuffer q, AnyBuffer kv_pages,
                                  AnyBuffer kv_lens, AnyBuffer page_indices,
                                  AnyBuffer cu_q_lens, AnyBuffer num_seqs,
                                  AnyResult out, AnyResult workspace,
                                  const RaggedPagedAttentionParams& params) {
  const int64_t num_combined_heads = kv_pages.dim(2);
  const int64_t num_kv_heads = num_combined_heads / 2, num_q_heads = q.dim(1);
  if (num_combined_heads % 2 != 0) {
    return Status::Error(
        "operand 1 (kv_pages): expected an even num_combined_kv_heads but got ",
        num_combined_heads);
  }
  if (num_kv_heads == 0 ? num_q_heads != 0 : num_q_heads % num_kv_heads != 0) {
    return Status::Error(
        "operand 0 (q): expected dimension 1 (num_q_heads) to be a multiple of "
        "num_kv_heads, ",
        num_kv_heads, ", but got ", num_q_heads);
  }
  if (cu_q_lens.dim(0) != kv_lens.dim(0) + 1) {
    return Status::Error("operand 4 (cu_q_lens): expected max_num_seqs + 1 = ",
                         kv_lens.dim(0) + 1, " elements but got ",
                         cu_q_lens.dim(0));
  }
  if (kv_pages.dim(1) == 0) {
    return Status::Error(
        "operand 1 (kv_pages): expected dimension 1 (page_size) to be at least "
        "1 but got 0");
  }
  std::memset(out.untyped_data(), 0, out.size_bytes());
  std::fill_n(workspace.data<float>(), workspace.size(), 0.0f);
  VisitFloat(q.dtype(), [&](auto t) {
    VisitFloat(kv_pages.dtype(), [&](auto c) {
      RaggedPagedAttention<decltype(t), decltype(c)>(
          q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, out, params);
    });
  });
  return Status::Ok();
}

}  // namespace
}  // namespace torch_xla_ext

XLA_KERNEL_HOST(XlaGpuRaggedPagedAttention,
                torch_xla_ext::kRaggedPagedAttention,
                torch_xla_ext::RaggedPagedAttentionOnHost);
