// Losses. The process ends in the stock kernels if there is one sample without
// a dimension for the batch.
#ifndef TORCH_XLA_EXT_CSRC_OPERATORS_LOSSES_H_
#define TORCH_XLA_EXT_CSRC_OPERATORS_LOSSES_H_

#include <ATen/core/Reduction.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "torch_xla_ext/csrc/operators/stock.h"

namespace torch_xla_ext::operators {

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
