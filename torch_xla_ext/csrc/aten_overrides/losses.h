// Losses.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_LOSSES_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_LOSSES_H_

#include <ATen/NativeFunctions.h>
#include <ATen/core/Reduction.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/arithmetic.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// PyTorch's reduction of a loss per element.
inline at::Tensor Reduced(const at::Tensor& loss, int64_t reduction) {
  if (reduction == at::Reduction::Mean) return at::mean(loss);
  return reduction == at::Reduction::Sum ? at::sum(loss) : loss;
}

// In the upstream kernels, the loss has the type of `self`.
inline at::Tensor MseLoss(const at::Tensor& self, const at::Tensor& target,
                          int64_t reduction) {
  const at::ScalarType dtype = CommonType(self, target);
  return Upstream::mse_loss(self.to(dtype), target.to(dtype), reduction);
}

inline at::Tensor SmoothL1Loss(const at::Tensor& self, const at::Tensor& target,
                               int64_t reduction, double beta) {
  const at::ScalarType dtype = CommonType(self, target);
  return Upstream::smooth_l1_loss(self.to(dtype), target.to(dtype), reduction,
                                  beta);
}

// PyTorch's binary_cross_entropy bounds logarithms, and converts the product
// with the weight to the type of the loss. The upstream kernel's log(1 - x) is
// 0 for a small x.
inline std::optional<at::Tensor> WeightOf(
    const at::Tensor& self, const std::optional<at::Tensor>& weight) {
  if (!IsGiven(weight)) return weight;
  return weight->to(self.scalar_type());
}

inline at::Tensor BinaryCrossEntropy(const at::Tensor& self,
                                     const at::Tensor& target,
                                     const std::optional<at::Tensor>& weight,
                                     int64_t reduction) {
  const at::Tensor log = at::clamp_min(at::log(self), -100);
  const at::Tensor log_of_other = at::clamp_min(at::log1p(at::neg(self)), -100);
  const at::Tensor loss =
      at::sub(at::mul(at::sub(target, 1), log_of_other), at::mul(target, log));
  const std::optional<at::Tensor> factor = WeightOf(self, weight);
  return Reduced(IsGiven(factor) ? at::mul(loss, *factor) : loss, reduction);
}

inline at::Tensor BinaryCrossEntropyBackward(
    const at::Tensor& grad_output, const at::Tensor& self,
    const at::Tensor& target, const std::optional<at::Tensor>& weight,
    int64_t reduction) {
  const at::Tensor variance =
      at::clamp_min(at::mul(at::rsub(self, 1), self), 1e-12);
  at::Tensor grad =
      at::div(at::mul(grad_output, at::sub(self, target)), variance);
  const std::optional<at::Tensor> factor = WeightOf(self, weight);
  if (IsGiven(factor)) grad = at::mul(grad, *factor);
  return reduction == at::Reduction::Mean ? at::div(grad, self.numel()) : grad;
}

// The lengths may be on the CPU, as on CUDA.
inline at::Tensor CtcLoss(const at::Tensor& log_probs,
                          const at::Tensor& targets,
                          const at::Tensor& input_lengths,
                          const at::Tensor& target_lengths, int64_t blank,
                          int64_t reduction, bool zero_infinity) {
  const at::Device device = log_probs.device();
  return at::native::ctc_loss(log_probs, targets, input_lengths.to(device),
                              target_lengths.to(device), blank, reduction,
                              zero_infinity);
}

// Either operand may be booleans, which have no difference.
inline at::Tensor Difference(const at::Tensor& self, const at::Tensor& target) {
  const at::ScalarType dtype = CommonType(self, target);
  return at::sub(self.to(dtype), target.to(dtype));
}

// torch_xla has no kernels for the Huber loss, which has the type of `self`.
inline at::Tensor HuberLoss(const at::Tensor& self, const at::Tensor& target,
                            int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0,
              "huber_loss does not support non-positive values for "
              "delta.");
  const at::Tensor distance = at::abs(Difference(self, target));
  const at::Tensor square = at::mul(at::mul(distance, distance), 0.5);
  const at::Tensor linear = at::mul(at::sub(distance, 0.5 * delta), delta);
  const at::Tensor loss =
      at::where(at::le(distance, delta), square, linear).to(self.scalar_type());
  return Reduced(loss, reduction);
}

inline at::Tensor HuberLossBackward(const at::Tensor& grad_output,
                                    const at::Tensor& self,
                                    const at::Tensor& target, int64_t reduction,
                                    double delta) {
  const at::Tensor distance = Difference(self, target);
  const at::Tensor slope =
      at::where(at::gt(at::abs(distance), delta),
                at::mul(at::sign(distance), delta), distance);
  const at::Tensor grad = at::mul(slope, grad_output).to(self.scalar_type());
  return reduction == at::Reduction::Mean
             ? at::div(grad, static_cast<double>(distance.numel()))
             : grad;
}

// The upstream kernel's gradient for NaN is a number.
inline at::Tensor SmoothL1LossBackward(const at::Tensor& grad_output,
                                       const at::Tensor& self,
                                       const at::Tensor& target,
                                       int64_t reduction, double beta) {
  if (beta == 0) {
    return Upstream::smooth_l1_loss_backward(grad_output, self, target,
                                             reduction, beta);
  }
  return at::div(HuberLossBackward(grad_output, self, target, reduction, beta),
                 beta);
}

// The upstream kernels crash the process for one sample without a batch
// dimension.
inline at::Tensor NllLossBackward(const at::Tensor& grad_output,
                                  const at::Tensor& self,
                                  const at::Tensor& target,
                                  const std::optional<at::Tensor>& weight,
                                  int64_t reduction, int64_t ignore_index,
                                  const at::Tensor& total_weight) {
  if (self.dim() != 1) {
    return Upstream::nll_loss_backward(grad_output, self, target, weight,
                                       reduction, ignore_index, total_weight);
  }
  const at::Tensor grad =
      reduction == at::Reduction::None ? grad_output.reshape({1}) : grad_output;
  return Upstream::nll_loss_backward(grad, at::unsqueeze_copy(self, 0),
                                     target.reshape({1}), weight, reduction,
                                     ignore_index, total_weight)
      .reshape(self.sizes());
}

// The upstream kernels multiply other classes' elements by 0, which is NaN for
// NaN and infinities. The dimension of the classes is the second, or the only
// one.
inline std::tuple<at::Tensor, at::Tensor> NllLossForward(
    const at::Tensor& self, const at::Tensor& target,
    const std::optional<at::Tensor>& weight, int64_t reduction,
    int64_t ignore_index) {
  if (at::isFloatingType(target.scalar_type())) {
    TORCH_WARN_ONCE("cross_entropy or nll_loss: the classes are of dtype ",
                    target.scalar_type(),
                    ", which PyTorch refuses on other devices: pass "
                    "target.long(), or probabilities of the input's size");
  }
  const int64_t dim = self.dim() == 1 ? 0 : 1;
  std::vector<int64_t> classes(self.dim(), 1), one = self.sizes().vec();
  classes[dim] = self.size(dim);
  one[dim] = 1;
  const at::Tensor targets = at::view_copy(target, one);
  const at::Tensor is_chosen = at::logical_and(
      at::eq(
          at::view_copy(at::arange(self.size(dim), target.options()), classes),
          targets),
      at::ne(targets, ignore_index));
  const auto chosen = [&](const at::Tensor& values) {
    const at::Tensor zero = at::zeros({}, values.options());
    return at::sum(at::where(is_chosen, values, zero), dim);
  };
  const at::Tensor weights = chosen(weight.has_value() && weight->defined()
                                        ? at::view_copy(*weight, classes)
                                        : at::ones(classes, self.options()));
  const at::Tensor loss = at::mul(at::neg(chosen(self)), weights);
  if (reduction == at::Reduction::None) {
    return {loss, at::zeros({}, self.options())};
  }
  const at::Tensor total = at::sum(loss), total_weight = at::sum(weights);
  return {
      reduction == at::Reduction::Mean ? at::div(total, total_weight) : total,
      total_weight};
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_LOSSES_H_
