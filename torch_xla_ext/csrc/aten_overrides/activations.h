// Activations, and gradients of activations.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_ACTIVATIONS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_ACTIVATIONS_H_

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// The upstream kernel subtracts 1 from exp, which is 1 of a small number.
inline at::Tensor Elu(const at::Tensor& self, const at::Scalar& alpha,
                      const at::Scalar& scale, const at::Scalar& input_scale) {
  const at::Tensor below = at::expm1(at::mul(self, input_scale));
  return at::where(at::lt(self, 0),
                   at::mul(below, alpha.toDouble() * scale.toDouble()),
                   at::mul(self, scale));
}

inline at::Tensor Celu(const at::Tensor& self, const at::Scalar& alpha) {
  TORCH_CHECK(alpha.toDouble() != 0,
              "ZeroDivisionError: alpha cannot be 0 for CELU");
  return Elu(self, alpha, 1.0, 1 / alpha.toDouble());
}

// The argument of the approximation's tanh.
inline at::Tensor InnerOfGelu(const at::Tensor& self) {
  const at::Tensor cube = at::mul(at::mul(self, self), self);
  return at::mul(at::add(self, at::mul(cube, 0.044715)),
                 M_SQRT2 * M_2_SQRTPI * 0.5);
}

// The upstream kernels of gelu have constants of float32.
inline at::Tensor Gelu(const at::Tensor& self, std::string_view approximate) {
  if (self.scalar_type() != at::kDouble) {
    return Upstream::gelu(self, approximate);
  }
  const at::Tensor part = approximate == "tanh"
                              ? at::tanh(InnerOfGelu(self))
                              : at::erf(at::mul(self, M_SQRT1_2));
  return at::mul(at::mul(self, 0.5), at::add(part, 1));
}

inline at::Tensor GeluBackward(const at::Tensor& grad_output,
                               const at::Tensor& self,
                               std::string_view approximate) {
  if (self.scalar_type() != at::kDouble) {
    return kBroadcast<&Upstream::gelu_backward>(grad_output, self, approximate);
  }
  const at::Tensor square = at::mul(self, self);
  at::Tensor part, slope;  // 2 * cdf - 1, and its derivative
  if (approximate == "tanh") {
    part = at::tanh(InnerOfGelu(self));
    slope = at::mul(at::rsub(at::mul(part, part), 1),
                    at::mul(at::add(at::mul(square, 3 * 0.044715), 1),
                            M_SQRT2 * M_2_SQRTPI * 0.5));
  } else {
    part = at::erf(at::mul(self, M_SQRT1_2));
    slope = at::mul(at::exp(at::mul(square, -0.5)), M_SQRT2 * M_2_SQRTPI * 0.5);
  }
  const at::Tensor twice = at::add(at::add(part, 1), at::mul(self, slope));
  return at::mul(grad_output, at::mul(twice, 0.5));
}

// The upstream kernel always treats its operand as elu's result, although it
// may be elu's input.
inline at::Tensor EluBackward(const at::Tensor& grad_output,
                              const at::Scalar& alpha, const at::Scalar& scale,
                              const at::Scalar& input_scale, bool is_result,
                              const at::Tensor& self_or_result) {
  if (is_result) {
    return Upstream::elu_backward(grad_output, alpha, scale, input_scale,
                                  is_result, self_or_result);
  }
  const double slope = scale.toDouble() * alpha.toDouble();
  const double inner = input_scale.toDouble();
  // At 0, PyTorch uses the gradient of the negative side.
  const at::Tensor below =
      at::mul(at::exp(at::mul(self_or_result, inner)), slope * inner);
  return at::where(at::le(self_or_result, 0), at::mul(grad_output, below),
                   at::mul(grad_output, scale));
}

// torch_xla has no kernel.
inline at::Tensor GluBackward(const at::Tensor& grad_output,
                              const at::Tensor& self, int64_t dim) {
  const int64_t half = self.size(dim) / 2;
  const at::Tensor value = self.narrow_copy(dim, 0, half);
  const at::Tensor gate = at::sigmoid(self.narrow_copy(dim, half, half));
  const at::Tensor of_value = at::mul(grad_output, gate);
  const at::Tensor of_gate =
      at::mul(at::mul(of_value, at::sub(at::ones_like(gate), gate)), value);
  return at::cat({of_value, of_gate}, dim);
}

// The upstream kernels of these two include -3 and 3 in the inner range.
inline at::Tensor HardsigmoidBackward(const at::Tensor& grad_output,
                                      const at::Tensor& self) {
  return at::where(at::lt(at::abs(self), 3), at::div(grad_output, 6),
                   at::zeros_like(grad_output));
}

inline at::Tensor HardswishBackward(const at::Tensor& grad_output,
                                    const at::Tensor& self) {
  const at::Tensor within =
      at::mul(grad_output, at::add(at::div(self, 3), 0.5));
  return at::where(at::le(self, -3), at::zeros_like(grad_output),
                   at::where(at::lt(self, 3), within, grad_output));
}

// The upstream kernel computes inf - inf for -inf.
inline std::tuple<at::Tensor, at::Tensor> LogSigmoidForward(
    const at::Tensor& self) {
  const at::Tensor buffer = at::exp(at::neg(at::abs(self)));
  return {at::sub(at::clamp_max(self, 0), at::log1p(buffer)), buffer};
}

inline at::Tensor LogSigmoidBackward(const at::Tensor& grad_output,
                                     const at::Tensor& self,
                                     const at::Tensor& /*buffer*/) {
  return at::mul(grad_output, at::sigmoid(at::neg(self)));
}

// The upstream kernel compares in float64.
inline at::Tensor SoftplusBackward(const at::Tensor& grad_output,
                                   const at::Tensor& self,
                                   const at::Scalar& beta,
                                   const at::Scalar& threshold) {
  const at::Tensor scaled = at::mul(self, beta);
  return at::where(at::gt(scaled, threshold), grad_output,
                   at::mul(grad_output, at::sigmoid(scaled)));
}

// The upstream kernel returns NaN outside of [0, 1], even where `eps` clamps.
inline at::Tensor Logit(const at::Tensor& self, std::optional<double> eps) {
  if (!eps || *eps < 0) return Upstream::logit(self, std::nullopt);
  return Upstream::logit(at::clamp(self, *eps, 1 - *eps), std::nullopt);
}

// These two take weights of any sizes that broadcast; the upstream kernels do
// not.
inline at::Tensor PreluKernel(const at::Tensor& self,
                              const at::Tensor& weight) {
  return at::where(at::gt(self, 0), self, at::mul(self, weight));
}

inline std::tuple<at::Tensor, at::Tensor> PreluKernelBackward(
    const at::Tensor& grad_output, const at::Tensor& self,
    const at::Tensor& weight) {
  const at::Tensor is_above = at::gt(self, 0);
  const at::Tensor of_self =
      at::where(is_above, grad_output, at::mul(grad_output, weight));
  const at::Tensor of_weight =
      at::where(is_above, at::zeros_like(self), at::mul(grad_output, self));
  return {of_self, OfSizes(of_weight, of_self.sizes())};
}

// In this and the next two functions NaN stays NaN; the upstream kernels
// replace it.
inline at::Tensor Threshold(const at::Tensor& self, const at::Scalar& threshold,
                            const at::Scalar& value) {
  return at::where(at::le(self, threshold), at::full_like(self, value), self);
}

inline at::Tensor ThresholdBackward(const at::Tensor& grad_output,
                                    const at::Tensor& self,
                                    const at::Scalar& threshold) {
  return at::where(at::le(self, threshold), at::zeros_like(grad_output),
                   grad_output);
}

inline at::Tensor Softshrink(const at::Tensor& self, const at::Scalar& lambd) {
  const at::Tensor inside = at::mul(self, 0);
  const at::Tensor low =
      at::where(at::lt(self, -lambd.toDouble()), at::add(self, lambd), inside);
  return at::where(at::gt(self, lambd), at::sub(self, lambd), low);
}

// PyTorch's gradient is 0 at both bounds; the upstream kernel's is not.
inline at::Tensor HardtanhBackward(const at::Tensor& grad_output,
                                   const at::Tensor& self,
                                   const at::Scalar& min_val,
                                   const at::Scalar& max_val) {
  const at::Tensor outside =
      at::logical_or(at::le(self, min_val), at::ge(self, max_val));
  return at::where(outside, at::zeros_like(grad_output), grad_output);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_ACTIVATIONS_H_
