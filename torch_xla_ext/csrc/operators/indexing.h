// Slices, views and copies.
#ifndef TORCH_XLA_EXT_CSRC_OPERATORS_INDEXING_H_
#define TORCH_XLA_EXT_CSRC_OPERATORS_INDEXING_H_

#include <ATen/NativeFunctions.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/operators/stock.h"

namespace torch_xla_ext::operators {

// torch.compile changes only the sizes of what stands for a tensor. The stock
// kernel fails where that is not a tensor of its own.
inline const at::Tensor& AsStrided_(const at::Tensor& self,
                                    at::IntArrayRef size,
                                    at::IntArrayRef stride,
                                    std::optional<int64_t> storage_offset) {
  if (torch_xla::bridge::TryGetXlaTensor(self) == nullptr) {
    return at::native::as_strided__symint(self, c10::fromIntArrayRefSlow(size),
                                          c10::fromIntArrayRefSlow(stride),
                                          storage_offset);
  }
  return Stock::as_strided_(self, size, stride, storage_offset);
}

// Whether the elements of a view are contiguous in memory, in some order of its
// dimensions.
inline bool IsDense(at::IntArrayRef size, at::IntArrayRef stride) {
  std::vector<std::tuple<int64_t, int64_t>> dimensions;
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] != 1) dimensions.emplace_back(stride[i], size[i]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t expected = 1;
  for (const auto& [step, count] : dimensions) {
    if (step != expected) return false;
    expected *= count;
  }
  return true;
}

// The stock kernel writes to consecutive elements, whatever the strides are.
inline at::Tensor AsStridedScatter(const at::Tensor& self,
                                   const at::Tensor& src, at::IntArrayRef size,
                                   at::IntArrayRef stride,
                                   std::optional<int64_t> storage_offset) {
  if (!IsDense(size, stride)) {
    return OnCpu<at::_ops::as_strided_scatter>(self, src, size, stride,
                                               storage_offset);
  }
  return Stock::as_strided_scatter(self, src, size, stride, storage_offset);
}

// The stock kernel divides by the size of a dimension, which ends the process
// if it is 0.
inline at::Tensor Roll(const at::Tensor& self, at::IntArrayRef shifts,
                       at::IntArrayRef dims) {
  return self.numel() == 0 ? at::clone(self) : Stock::roll(self, shifts, dims);
}

// A bound of a slice, which may lie before the first element: x[-512:] of fewer
// elements is x. The stock kernels refuse it.
inline std::optional<int64_t> SliceBound(const at::Tensor& self, int64_t dim,
                                         std::optional<int64_t> bound) {
  if (!bound.has_value() || self.dim() == 0) return bound;
  return std::max(*bound, -self.size(dim));
}

inline at::Tensor SliceCopy(const at::Tensor& self, int64_t dim,
                            std::optional<int64_t> start,
                            std::optional<int64_t> end, int64_t step) {
  return Stock::slice_copy(self, dim, SliceBound(self, dim, start),
                           SliceBound(self, dim, end), step);
}

inline at::Tensor SliceScatter(const at::Tensor& base,
                               const at::Tensor& mutated_view, int64_t dim,
                               std::optional<int64_t> start,
                               std::optional<int64_t> end, int64_t step) {
  return Stock::slice_scatter(base, mutated_view, dim,
                              SliceBound(base, dim, start),
                              SliceBound(base, dim, end), step);
}

}  // namespace torch_xla_ext::operators

#endif  // TORCH_XLA_EXT_CSRC_OPERATORS_INDEXING_H_
