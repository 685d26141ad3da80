// Layer normalization.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_LAYER_NORM_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_LAYER_NORM_H_

#include <ATen/native/layer_norm.h>
#include <c10/core/DispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/normalization.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// The input of layer_norm(): `count` rows of `size` numbers, in the type in
// which PyTorch computes.
//
// torch_xla composes layer_norm of a batch normalization with one channel per
// row, which XLA:GPU compiles to kernels that read the input two to six times.
// XLA:GPU compiles the formulas here to one kernel that reads and writes each
// row once, and for the gradients one more for the sums of the columns.
struct Rows {
  Rows(const at::Tensor& input, at::IntArrayRef normalized_shape,
       const at::Tensor& weight, const at::Tensor& bias)
      : type(Has16Bits(input) ? at::kFloat : input.scalar_type()),
        statistics_shape(input.sizes().vec()) {
    std::tie(count, size) = at::native::_check_layer_norm_inputs(
        input, normalized_shape, weight, bias);
    std::fill_n(statistics_shape.rbegin(), normalized_shape.size(), 1);
  }
  // A tensor of the input's shape, to compute with.
  at::Tensor Matrix(const at::Tensor& tensor) const {
    return at::view_copy(tensor, {count, size}).to(type);
  }
  // The weight or the bias, to compute with.
  at::Tensor Row(const at::Tensor& tensor) const {
    return at::view_copy(tensor, {1, size}).to(type);
  }
  // A number per row, to compute with.
  at::Tensor Column(const at::Tensor& tensor) const {
    return at::view_copy(tensor, {count, 1}).to(type);
  }
  at::Tensor Mean(const at::Tensor& matrix) const {
    return at::mean(matrix, 1, /*keepdim=*/true);
  }

  at::ScalarType type;
  std::vector<int64_t> statistics_shape;
  int64_t count = 0;
  int64_t size = 0;
};

// The mean of each row and 1 / deviation.
using Statistics = std::tuple<at::Tensor, at::Tensor>;

// In two passes over a row, which XLA:GPU keeps in registers in between.
inline Statistics TwoPassStatistics(const at::Tensor& matrix, const Rows& rows,
                                    double eps) {
  const at::Tensor mean = rows.Mean(matrix);
  const at::Tensor centered = at::sub(matrix, mean);
  const at::Tensor variance = rows.Mean(at::mul(centered, centered));
  return {mean, at::rsqrt(at::add(variance, eps))};
}

inline Statistics OnePassStatistics(const at::Tensor& matrix, const Rows& rows,
                                    double eps) {
  const at::Tensor part = matrix.slice(1, 0, SizeOfPart(rows.size));
  const auto [mean, variance] = ShiftedMoments(matrix, part, {1});
  return {mean, at::rsqrt(at::add(variance, eps))};
}

// PyTorch's native_layer_norm.
//
// The statistics are computed separately from the result, because XLA:GPU could
// not fuse the normalization if something else read them. Unread statistics
// cost nothing.
inline ThreeTensors NativeLayerNorm(const at::Tensor& input,
                                    at::IntArrayRef normalized_shape,
                                    const std::optional<at::Tensor>& weight,
                                    const std::optional<at::Tensor>& bias,
                                    double eps) {
  constexpr int64_t kLongestRowInRegisters = 16384;
  const Rows rows(input, normalized_shape, weight.value_or(at::Tensor()),
                  bias.value_or(at::Tensor()));
  const at::Tensor matrix = rows.Matrix(input);
  const auto [row_mean, row_rstd] = rows.size > kLongestRowInRegisters
                                        ? OnePassStatistics(matrix, rows, eps)
                                        : TwoPassStatistics(matrix, rows, eps);
  at::Tensor result = at::mul(at::sub(matrix, row_mean), row_rstd);
  if (IsGiven(weight)) result = at::mul(result, rows.Row(*weight));
  if (IsGiven(bias)) result = at::add(result, rows.Row(*bias));
  const auto [mean, rstd] = OnePassStatistics(matrix, rows, eps);
  return {at::view_copy(result.to(input.scalar_type()), input.sizes()),
          at::view_copy(mean, rows.statistics_shape),
          at::view_copy(rstd, rows.statistics_shape)};
}

inline ThreeTensors NativeLayerNormBackward(
    const at::Tensor& grad_out, const at::Tensor& input,
    at::IntArrayRef normalized_shape, const at::Tensor& mean,
    const at::Tensor& rstd, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, std::array<bool, 3> output_mask) {
  const Rows rows(input, normalized_shape, weight.value_or(at::Tensor()),
                  bias.value_or(at::Tensor()));
  const at::Tensor scale = rows.Column(rstd);
  const at::Tensor grad = rows.Matrix(grad_out);
  const at::Tensor normalized =
      at::mul(at::sub(rows.Matrix(input), rows.Column(mean)), scale);
  ThreeTensors gradients;
  if (output_mask[0]) {
    const at::Tensor scaled =
        IsGiven(weight) ? at::mul(grad, rows.Row(*weight)) : grad;
    const at::Tensor along_normalized =
        at::mul(normalized, rows.Mean(at::mul(scaled, normalized)));
    const at::Tensor result = at::mul(
        at::sub(at::sub(scaled, rows.Mean(scaled)), along_normalized), scale);
    std::get<0>(gradients) =
        at::view_copy(result.to(input.scalar_type()), input.sizes());
  }
  if (output_mask[1]) {
    const at::Tensor sum = at::sum(at::mul(grad, normalized), 0);
    std::get<1>(gradients) =
        at::view_copy(sum.to(weight->scalar_type()), normalized_shape);
  }
  if (output_mask[2]) {
    std::get<2>(gradients) = at::view_copy(
        at::sum(grad, 0).to(bias->scalar_type()), normalized_shape);
  }
  return gradients;
}

// PyTorch's own function with gradients, which torch_xla replaces by PyTorch's
// composition of a batch normalization.
inline ThreeTensors LayerNormWithGradients(
    c10::DispatchKeySet keys, const at::Tensor& input,
    c10::SymIntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, double eps) {
  // This key is for any device; torch_xla has registered a kernel for a
  // different key.
  const c10::DispatchKeySet autograd(c10::DispatchKey::AutogradOther);
  return at::_ops::native_layer_norm::redispatch(
      (keys & c10::after_autograd_keyset) | autograd, input, normalized_shape,
      weight, bias, eps);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_LAYER_NORM_H_
