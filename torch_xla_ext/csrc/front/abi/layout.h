// Sizes, in bytes, of classes of the stock binary. The declarations in this
// folder are made of them; layout_test.cc checks them against the real headers.
#ifndef TORCH_XLA_EXT_CSRC_FRONT_ABI_LAYOUT_H_
#define TORCH_XLA_EXT_CSRC_FRONT_ABI_LAYOUT_H_

#include <cstddef>

namespace torch_xla_ext::layout {

inline constexpr size_t kStatusSize = 8;
inline constexpr size_t kStatusOrSize = 16;  // of a pointer
inline constexpr size_t kSpanSize = 16;
inline constexpr size_t kXlaOpSize = 16;
inline constexpr size_t kXlaOpVectorSize = 24;
inline constexpr size_t kShapeSize = 320;
inline constexpr size_t kCustomCallStatusSize = 40;
inline constexpr size_t kShapeIndexSize = 24;

}  // namespace torch_xla_ext::layout

#endif  // TORCH_XLA_EXT_CSRC_FRONT_ABI_LAYOUT_H_
