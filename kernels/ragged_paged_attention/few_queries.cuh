// The rows of several query tokens of a sequence, for kernels of
// paged_attention.
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_FEW_QUERIES_CUH_
#define KERNELS_RAGGED_PAGED_ATTENTION_FEW_QUERIES_CUH_

#include <cstdint>

#include "kernels/ragged_paged_attention/arguments.cuh"

namespace torch_xla_ext::ragged {

// Rows are pairs of a query token and a head of a kv head, in that order.
struct TokenRows {
  int begin;      // the sequence's first row in q
  int first;      // index of the first row among the sequence's pairs
  int num_heads;  // for all kv heads
  int head;       // the kv head's first query head
  int group;
  int count;
  // The position of the sequence's first query, which may be negative. If no
  // row hides any token, a position after all tokens.
  int position;

  __device__ int64_t IndexOf(int row) const {
    return static_cast<int64_t>(begin + (first + row) / group) * num_heads +
           HeadOf(row);
  }
  __device__ int HeadOf(int row) const { return head + (first + row) % group; }
  __device__ int PositionIn(int context) const { return position; }
  static constexpr bool kHides = true;
  __device__ bool Hides(int row, int distance) const {
    return distance > (first + row) / group;
  }
};

// The rows of a sequence and kv head from `first` on, `limit` at most.
__device__ inline TokenRows TokenRowsOf(const Arguments& arguments,
                                        const Sequence& sequence, int kv_head,
                                        int first, int limit) {
  const int group = arguments.group_size;
  return {sequence.begin,
          first,
          arguments.num_q_heads,
          kv_head * group,
          group,
          min(sequence.q_len * group - first, limit),
          arguments.causal ? sequence.first_position : sequence.kv_len};
}

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_FEW_QUERIES_CUH_
