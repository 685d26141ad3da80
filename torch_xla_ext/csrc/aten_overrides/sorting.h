// Sorts numbers in PyTorch's order, in which every NaN is the largest number,
// and zeros are equal. XLA's order is total, including signs: -NaN, -inf, -0.0,
// 0.0, inf, NaN; on x86, a computed NaN, such as 0.0 / 0.0, is -NaN.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SORTING_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SORTING_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// Replaces -NaN by NaN.
inline at::Tensor WithPositiveNan(const at::Tensor& self) {
  if (!self.is_floating_point()) return self;
  return at::where(at::isnan(self), at::full({}, NAN, self.options()), self);
}

// Either 0.0 or -0.0 may be returned, because they are equal. The sort itself
// is the upstream kernel's, which XLA rewrites into faster calls.
inline std::tuple<at::Tensor, at::Tensor> Kthvalue(const at::Tensor& self,
                                                   int64_t k, int64_t dim,
                                                   bool keepdim) {
  return Upstream::kthvalue(WithPositiveNan(self), k, dim, keepdim);
}

inline std::tuple<at::Tensor, at::Tensor> Topk(const at::Tensor& self,
                                               int64_t k, int64_t dim,
                                               bool largest, bool sorted) {
  return Upstream::topk(WithPositiveNan(self), k, dim, largest, sorted);
}

inline std::tuple<at::Tensor, at::Tensor> StableSort(const at::Tensor& self,
                                                     std::optional<bool> stable,
                                                     int64_t dim,
                                                     bool descending) {
  const at::Tensor values = WithPositiveNan(self);
  if (!stable.value_or(false) || !self.is_floating_point()) {
    return Upstream::sort(values, stable, dim, descending);
  }
  const at::Tensor with_equal_zeros =
      at::where(at::eq(self, 0), at::zeros({}, self.options()), values);
  const at::Tensor order =
      std::get<1>(Upstream::sort(with_equal_zeros, stable, dim, descending));
  return {at::gather(self, dim, order), order};
}

inline std::tuple<at::Tensor, at::Tensor> Sort(const at::Tensor& self,
                                               int64_t dim, bool descending) {
  return StableSort(self, /*stable=*/std::nullopt, dim, descending);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SORTING_H_
