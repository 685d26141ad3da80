// Losses.
#ifndef TORCH_XLA_EXT_CSRC_OPERATORS_LOSSES_H_
#define TORCH_XLA_EXT_CSRC_OPERATORS_LOSSES_H_

#include <ATen/core/Reduction.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "torch_xla_ext/csrc/operators/stock.h"

namespace torch_xla_ext::operators {

// PyTorch's reduction of a loss per element.
inline at::Tensor Reduced(const at::Tensor& loss, int64_t reduction) {
  if (reduction == at::Reduction::Mean) return at::mean(loss);
  return reduction == at::Reduction::Sum ? at::sum(loss) : loss;
}

// torch_xla has no kernels of its own for the Huber loss.
inline at::Tensor HuberLoss(const at::Tensor& self, const at::Tensor& target,
                            int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0,
              "huber_loss does not support non-positive values for "
              "delta.");
  const at::Tensor distance = at::abs(at::sub(self, target));
  const at::Tensor square = at::mul(at::mul(distance, distance), 0.5);
  const at::Tensor linear = at::mul(at::sub(distance, 0.5 * delta), delta);
  return Reduced(at::where(at::le(distance, delta), square, linear), reduction);
}

inline at::Tensor HuberLossBackward(const at::Tensor& grad_output,
                                    const at::Tensor& self,
                                    const at::Tensor& target, int64_t reduction,
                                    double delta) {
  const at::Tensor distance = at::sub(self, target);
  const at::Tensor slope =
      at::where(at::gt(at::abs(distance), delta),
                at::mul(at::sign(distance), delta), distance);
  const at::Tensor grad = at::mul(slope, grad_output);
  return reduction == at::Reduction::Mean
             ? at::div(grad, static_cast<double>(distance.numel()))
             : grad;
}

// The process ends in the stock kernels if there is one sample without a
// dimension for the batch.
inline at::Tensor NllLossBackward(const at::Tensor& grad_output,
                                  const at::Tensor& self,
                                  const at::Tensor& target,
                                  const std::optional<at::Tensor>& weight,
                                  int64_t reduction, int64_t ignore_index,
                                  const at::Tensor& total_weight) {
  if (self.dim() != 1) {
    return Stock::nll_loss_backward(grad_output, self, target, weight,
                                    reduction, ignore_index, total_weight);
  }
  const at::Tensor grad =
      reduction == at::Reduction::None ? grad_output.reshape({1}) : grad_output;
  return Stock::nll_loss_backward(grad, at::unsqueeze(self, 0),
                                  target.reshape({1}), weight, reduction,
                                  ignore_index, total_weight)
      .reshape(self.sizes());
}

inline std::tuple<at::Tensor, at::Tensor> NllLossForward(
    const at::Tensor& self, const at::Tensor& target,
    const std::optional<at::Tensor>& weight, int64_t reduction,
    int64_t ignore_index) {
  if (self.dim() != 1) {
    return Stock::nll_loss_forward(self, target, weight, reduction,
                                   ignore_index);
  }
  auto [loss, total_weight] =
      Stock::nll_loss_forward(at::unsqueeze(self, 0), target.reshape({1}),
                              weight, reduction, ignore_index);
  return {loss.reshape(target.sizes()), total_weight};
}

}  // namespace torch_xla_ext::operators

#endif  // TORCH_XLA_EXT_CSRC_OPERATORS_LOSSES_H_
