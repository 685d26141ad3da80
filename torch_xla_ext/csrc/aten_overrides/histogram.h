// torch.histc. Upstream torch_xla has no kernel and copied the operand to the
// CPU, where PyTorch has no kernel of integers, which it has on CUDA.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_HISTOGRAM_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_HISTOGRAM_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

using Ends = std::pair<at::Tensor, at::Tensor>;

// The ends of the given range, as numbers of `Number`, the type of `values`;
// nothing if they are equal, which stands for the range of the values.
template <typename Number>
std::optional<Ends> GivenRange(const at::Tensor& values, const at::Scalar& min,
                               const at::Scalar& max) {
  const auto first = min.to<Number>(), last = max.to<Number>();
  if (first == last) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>) {
    TORCH_CHECK(std::isfinite(first) && std::isfinite(last), "range of [",
                first, ", ", last, "] is not finite");
  }
  TORCH_CHECK(first < last, "max must be larger than min");
  return Ends(at::full({}, first, values.options()),
              at::full({}, last, values.options()));
}

inline std::optional<Ends> GivenRange(const at::Tensor& values,
                                      const at::Scalar& min,
                                      const at::Scalar& max) {
  switch (values.scalar_type()) {
    case at::kLong:
      return GivenRange<int64_t>(values, min, max);
    case at::kDouble:
      return GivenRange<double>(values, min, max);
    default:
      return GivenRange<float>(values, min, max);
  }
}

inline Ends RangeOf(const at::Tensor& values) {
  const at::Tensor first = at::min(values), last = at::max(values);
  const at::Tensor is_one = at::eq(first, last);
  return {at::where(is_one, at::sub(first, 1), first),
          at::where(is_one, at::add(last, 1), last)};
}

// The number of elements equal to each of 0, 1, ..., bins - 1; no other one is
// above `bins`.
inline at::Tensor Counts(const at::Tensor& index, int64_t bins) {
  // Up to this number, comparisons of each element cost less than XLA's
  // scatter.
  constexpr int64_t kMaxComparisons = 512;
  if (bins <= kMaxComparisons) {
    const at::Tensor numbers = at::arange(bins, index.options());
    return at::sum(at::eq(at::view_copy(index, {-1, 1}), numbers), {0},
                   /*keepdim=*/false, at::kLong);
  }
  const at::Tensor counts = at::scatter_add(
      at::zeros({bins + 1}, index.options()), 0, index, at::ones_like(index));
  return at::slice_copy(counts, 0, 0, bins);
}

// Computes as PyTorch's kernel on CUDA, and also for 16-bit numbers. Only the
// device knows the range of the data: where PyTorch would raise because a
// number is NaN or infinite, all counts are NaN.
inline at::Tensor Histc(const at::Tensor& self, int64_t bins,
                        const at::Scalar& min, const at::Scalar& max) {
  const bool is_integer =
      at::isIntegralType(self.scalar_type(), /*includeBool=*/false);
  TORCH_CHECK_NOT_IMPLEMENTED(is_integer || self.is_floating_point(),
                              "\"histc\" not implemented for '",
                              self.scalar_type(), "'");
  TORCH_CHECK(bins > 0, "bins must be > 0");
  const at::ScalarType type = is_integer                          ? at::kLong
                              : self.scalar_type() == at::kDouble ? at::kDouble
                                                                  : at::kFloat;
  const at::Tensor values = at::view_copy(self, {-1}).to(type);
  const std::optional<Ends> given = GivenRange(values, min, max);
  if (values.numel() == 0) return at::zeros({bins}, self.options());
  const auto [first, last] = given ? *given : RangeOf(values);
  const at::Tensor distance = at::mul(at::sub(values, first), bins);
  const at::Tensor width = at::sub(last, first);
  const at::Tensor bin = (is_integer ? at::div(distance, width, "trunc")
                                     : at::div(distance, width))
                             .to(at::kLong)
                             .clamp_max(bins - 1);
  const at::Tensor is_inside =
      at::logical_and(at::ge(values, first), at::le(values, last));
  const at::Tensor counts =
      Counts(at::where(is_inside, bin, bins), bins).to(self.scalar_type());
  if (is_integer || given) return counts;
  const at::Tensor is_finite =
      at::logical_and(at::isfinite(first), at::isfinite(last));
  return at::where(is_finite, counts, at::full({}, NAN, counts.options()));
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_HISTOGRAM_H_
