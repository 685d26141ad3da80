// Sums, norms and statistics over dimensions.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_REDUCTIONS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_REDUCTIONS_H_

#include <ATen/WrapDimUtilsMulti.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// An empty list of dimensions means none in the upstream kernels (x.amax() was
// x), and all in PyTorch. A dimension of a tensor without dimensions,
// `x.sum().logsumexp(0)`, is an error there.
inline bool MeansAll(const at::Tensor& self, at::IntArrayRef dim) {
  at::dim_list_to_bitset(dim, self.dim());  // throws PyTorch's IndexError
  return dim.empty() ||
         (self.dim() == 0 && dim.size() == 1 && (dim[0] == 0 || dim[0] == -1));
}

inline std::vector<int64_t> ListOf(const at::Tensor& self,
                                   at::IntArrayRef dim) {
  if (!MeansAll(self, dim)) return dim.vec();
  std::vector<int64_t> all(self.dim());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// In the upstream kernels, an absent list means all dimensions.
inline at::OptionalIntArrayRef ListOf(const at::Tensor& self,
                                      at::OptionalIntArrayRef dim) {
  return dim.has_value() && MeansAll(self, *dim) ? std::nullopt : dim;
}

// `kUpstream`, of the type `Function`, with the dimensions that PyTorch means.
template <typename Function, Function* kUpstream>
struct OverAll;

template <typename Result, typename Dimensions, typename... Others,
          Result (*kUpstream)(const at::Tensor&, Dimensions, Others...)>
struct OverAll<Result(const at::Tensor&, Dimensions, Others...), kUpstream> {
  static Result Call(const at::Tensor& self, Dimensions dim, Others... others) {
    const auto list = ListOf(self, dim);
    return kUpstream(self, list, others...);
  }
};

// any() or all(), `kUpstream`, of booleans. The upstream kernels of numbers
// reduce with a computation that XLA does not know as an "or" or "and": over
// the shards of a tensor, XLA:CPU refused it, and XLA:GPU ended the process.
template <typename Function, Function* kUpstream>
struct OfBooleans;

template <typename... Others,
          at::Tensor (*kUpstream)(const at::Tensor&, Others...)>
struct OfBooleans<at::Tensor(const at::Tensor&, Others...), kUpstream> {
  static at::Tensor Call(const at::Tensor& self, Others... others) {
    if (self.scalar_type() == at::kBool) return kUpstream(self, others...);
    const at::Tensor result = kUpstream(at::ne(self, 0), others...);
    return self.scalar_type() == at::kByte ? result.to(at::kByte) : result;
  }
};

inline bool IsFloatOrComplex(at::ScalarType type) {
  return at::isFloatingType(type) || at::isComplexType(type);
}

inline void CheckMeanDtype(at::ScalarType type,
                           std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(
      IsFloatOrComplex(dtype.value_or(type)),
      "mean(): the result must be of a floating-point or complex dtype, "
      "but ",
      dtype.has_value() ? "dtype" : "the input's dtype", " is ",
      c10::toString(dtype.value_or(type)),
      "; give such a dtype, as in dtype=torch.float32");
}

inline at::Tensor MeanDim(const at::Tensor& self, at::OptionalIntArrayRef dim,
                          bool keepdim, std::optional<at::ScalarType> dtype) {
  if (self.is_complex()) {
    return OnCpu<at::_ops::mean_dim>(self, dim, keepdim, dtype);
  }
  return Upstream::mean(self, ListOf(self, dim), keepdim, dtype);
}

inline at::Tensor Mean(const at::Tensor& self,
                       std::optional<at::ScalarType> dtype) {
  if (self.is_complex()) return OnCpu<at::_ops::mean>(self, dtype);
  return Upstream::mean(self, std::nullopt, /*keepdim=*/false, dtype);
}

// The upstream kernel computes inf - inf if the largest number is infinite.
inline at::Tensor Logsumexp(const at::Tensor& self, at::IntArrayRef dim,
                            bool keepdim) {
  if (self.is_complex()) return OnCpu<at::_ops::logsumexp>(self, dim, keepdim);
  if (self.numel() == 0) {
    return at::log(at::sum(at::exp(self), ListOf(self, dim), keepdim));
  }
  const at::Tensor values = IsInteger(self) ? self.to(at::kFloat) : self;
  const std::vector<int64_t> list = ListOf(self, dim);
  at::Tensor largest = at::amax(values, list, /*keepdim=*/true);
  largest = at::where(at::isinf(largest), at::zeros_like(largest), largest);
  const at::Tensor sum =
      at::sum(at::exp(at::sub(values, largest)), list, keepdim);
  return at::add(at::log(sum),
                 keepdim ? largest : at::view_copy(largest, sum.sizes()));
}

template <auto kUpstream>
at::Tensor IndexOfExtremum(const at::Tensor& self, std::optional<int64_t> dim,
                           bool keepdim) {
  return self.dim() == 0 ? at::zeros({}, self.options().dtype(at::kLong))
                         : kUpstream(self, dim, keepdim);
}

using ValuesAndIndices = std::tuple<at::Tensor, at::Tensor>;

// The upstream kernels count in the operand's dtype: for a mask, the count is
// True.
inline at::Tensor CountNonzeroDims(const at::Tensor& self,
                                   at::IntArrayRef dim) {
  const at::Tensor is_nonzero = at::ne(self, 0);
  return dim.empty() ? at::sum(is_nonzero, at::kLong)
                     : at::sum(is_nonzero, dim, /*keepdim=*/false, at::kLong);
}

inline at::Tensor CountNonzero(const at::Tensor& self,
                               std::optional<int64_t> dim) {
  return dim.has_value() ? CountNonzeroDims(self, at::IntArrayRef(*dim))
                         : CountNonzeroDims(self, at::IntArrayRef());
}

// The upstream kernels of cumsum and trace sum integers in the operand's dtype:
// for a mask, the sum is True.
inline at::Tensor Cumsum(const at::Tensor& self, int64_t dim,
                         std::optional<at::ScalarType> dtype) {
  if (!dtype.has_value() && IsInteger(self)) dtype = at::kLong;
  if (self.numel() == 0) {  // which has no lowering
    return at::empty(self.sizes(),
                     self.options().dtype(dtype.value_or(self.scalar_type())));
  }
  return Upstream::cumsum(self, dim, dtype);
}

inline at::Tensor Cumprod(const at::Tensor& self, int64_t dim,
                          std::optional<at::ScalarType> dtype) {
  if (self.numel() == 0) {
    if (!dtype.has_value() && IsInteger(self)) dtype = at::kLong;
    return at::empty(self.sizes(),
                     self.options().dtype(dtype.value_or(self.scalar_type())));
  }
  return Upstream::cumprod(self, dim, dtype);
}

// The largest (or smallest) element so far, and its last index. In PyTorch NaN
// is the extremum; the upstream kernel of cummax loses it, and returns the
// first index. This is a scan of log2(n) steps.
template <bool kIsMax>
ValuesAndIndices CumulativeExtremum(const at::Tensor& self, int64_t dimension) {
  const int64_t dim = at::maybe_wrap_dim(dimension, self.dim());
  const auto options = self.options().dtype(at::kLong);
  if (self.dim() == 0 || self.numel() == 0) {
    return {at::clone(self), at::zeros(self.sizes(), options)};
  }
  const int64_t length = self.size(dim);
  std::vector<int64_t> shape(self.dim(), 1);
  shape[dim] = length;
  at::Tensor values = self;
  at::Tensor places = at::expand_copy(
      at::view_copy(at::arange(length, options), shape), self.sizes());
  for (int64_t step = 1; step < length; step *= 2) {
    const auto combine = [&](const at::Tensor& is_later,
                             const at::Tensor& all) {
      return at::cat(
          {at::slice_copy(all, dim, 0, step),
           at::where(is_later, at::slice_copy(all, dim, step, length),
                     at::slice_copy(all, dim, 0, length - step))},
          dim);
    };
    const at::Tensor earlier = at::slice_copy(values, dim, 0, length - step);
    const at::Tensor later = at::slice_copy(values, dim, step, length);
    at::Tensor is_later =
        kIsMax ? at::ge(later, earlier) : at::le(later, earlier);
    if (self.is_floating_point()) {
      is_later = at::logical_or(is_later, at::isnan(later));
    }
    places = combine(is_later, places);
    values = combine(is_later, values);
  }
  return {values, places};
}

inline at::Tensor Trace(const at::Tensor& self) {
  return Upstream::trace(IsInteger(self) ? self.to(at::kLong) : self);
}

inline void CheckNormDtype(at::ScalarType type,
                           std::optional<at::ScalarType> dtype) {
  TORCH_CHECK(IsFloatOrComplex(type),
              "linalg.vector_norm: Expected a floating point or complex tensor "
              "as input. Got ",
              c10::toString(type));
  if (!dtype.has_value()) return;
  TORCH_CHECK(IsFloatOrComplex(*dtype),
              "linalg.vector_norm: dtype should be floating point or complex, "
              "but got ",
              c10::toString(*dtype));
  TORCH_CHECK(at::isComplexType(type) == at::isComplexType(*dtype),
              "linalg.vector_norm: dtype should be ",
              at::isComplexType(type) ? "complex" : "real", " for ",
              at::isComplexType(type) ? "complex" : "real", " inputs, but got ",
              c10::toString(*dtype));
  TORCH_CHECK(at::promoteTypes(type, *dtype) == *dtype,
              "linalg.vector_norm: the dtype of the input (",
              c10::toString(type),
              ") should be convertible without narrowing to the specified "
              "dtype (",
              c10::toString(*dtype), ")");
}

// The upstream kernels sum powers even if p is infinite.
inline bool IsInfinite(const std::optional<at::Scalar>& p) {
  return p.has_value() && !p->isComplex() && std::isinf(p->toDouble());
}

inline at::Tensor InfiniteNorm(const at::Tensor& self, const at::Scalar& p,
                               at::IntArrayRef dim, bool keepdim,
                               std::optional<at::ScalarType> dtype) {
  at::Tensor magnitude = at::abs(self);
  if (dtype.has_value()) magnitude = magnitude.to(*dtype);
  return p.toDouble() > 0 ? at::amax(magnitude, dim, keepdim)
                          : at::amin(magnitude, dim, keepdim);
}

// The upstream kernels return complex results for complex numbers.
inline at::Tensor NormDimDtype(const at::Tensor& self,
                               const std::optional<at::Scalar>& p,
                               at::IntArrayRef dim, bool keepdim,
                               at::ScalarType dtype) {
  if (self.is_complex()) {
    return at::linalg_vector_norm(self, p.value_or(2), dim, keepdim, dtype);
  }
  if (IsInfinite(p)) return InfiniteNorm(self, *p, dim, keepdim, dtype);
  return Upstream::norm(self, p, ListOf(self, dim), keepdim, dtype);
}

inline at::Tensor NormDim(const at::Tensor& self,
                          const std::optional<at::Scalar>& p,
                          at::IntArrayRef dim, bool keepdim) {
  if (self.is_complex()) {
    return OnCpu<at::_ops::norm_ScalarOpt_dim>(self, p, dim, keepdim);
  }
  if (IsInfinite(p)) return InfiniteNorm(self, *p, dim, keepdim, std::nullopt);
  return Upstream::norm(self, p, ListOf(self, dim), keepdim);
}

inline at::Tensor NormDtype(const at::Tensor& self,
                            const std::optional<at::Scalar>& p,
                            at::ScalarType dtype) {
  return NormDimDtype(self, p, /*dim=*/{}, /*keepdim=*/false, dtype);
}

inline at::Tensor Norm(const at::Tensor& self, const at::Scalar& p) {
  return NormDim(self, p, /*dim=*/{}, /*keepdim=*/false);
}

inline at::Tensor LinalgVectorNorm(const at::Tensor& self,
                                   const at::Scalar& ord,
                                   at::OptionalIntArrayRef dim, bool keepdim,
                                   std::optional<at::ScalarType> dtype) {
  if (self.is_complex()) {  // which the upstream kernel refuses
    if (dtype.has_value()) dtype = at::toRealValueType(*dtype);
    return LinalgVectorNorm(at::abs(self), ord, dim, keepdim, dtype);
  }
  if (IsInfinite(ord)) {
    const at::IntArrayRef list = dim.value_or(at::IntArrayRef());
    return InfiniteNorm(self, ord, list, keepdim, dtype);
  }
  return Upstream::linalg_vector_norm(self, ord, ListOf(self, dim), keepdim,
                                      dtype);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_REDUCTIONS_H_
