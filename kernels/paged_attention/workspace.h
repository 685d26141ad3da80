// The size of the workspace, for the kernels' launch code and for the functions
// that compute it.
#ifndef KERNELS_PAGED_ATTENTION_WORKSPACE_H_
#define KERNELS_PAGED_ATTENTION_WORKSPACE_H_

#include <algorithm>
#include <cstdint>

namespace torch_xla_ext::paged_attention {

// The maximum number of thread blocks that launch.cuh starts.
inline constexpr int64_t kMaxBlocks = 512;
// The heads of a head block fill at most this many columns.
inline constexpr int64_t kMaxRows = 16;

// Two partial results per block: for each of the `rows` that the kernel
// processes at once, head_dim floats, the maximum and the sum. 4 more floats
// are for alignment (paged_attention.h).
constexpr int64_t WorkspaceOfRows(int64_t rows, int64_t head_dim) {
  return kMaxBlocks * (2 * rows * (head_dim + 2) + 2) + 4;
}

constexpr int64_t WorkspaceSize(int64_t num_heads, int64_t num_kv_heads,
                                int64_t head_dim) {
  const int64_t group = num_heads / std::max<int64_t>(num_kv_heads, 1);
  return WorkspaceOfRows(std::min(group, kMaxRows), head_dim);
}

}  // namespace torch_xla_ext::paged_attention

#endif  // KERNELS_PAGED_ATTENTION_WORKSPACE_H_
