// What the size of the workspace depends on, for the device code and for the
// function that says the size (ragged_paged_attention_host.cc).
#ifndef KERNELS_RAGGED_PAGED_ATTENTION_WORKSPACE_H_
#define KERNELS_RAGGED_PAGED_ATTENTION_WORKSPACE_H_

namespace torch_xla_ext::ragged {

// Rows of a tile of a sequence with few rows.
inline constexpr int kTileRows = 64;
// The Hopper kernel splits the context of a sequence with one query into at
// most so many parts.
inline constexpr int kMaxParts = 64;

}  // namespace torch_xla_ext::ragged

#endif  // KERNELS_RAGGED_PAGED_ATTENTION_WORKSPACE_H_
