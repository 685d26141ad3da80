// Pools. The stock kernels divide by the strides, which ends the process if one
// is 0, and compute something for other wrong arguments.
#ifndef TORCH_XLA_EXT_CSRC_OPERATORS_POOLING_H_
#define TORCH_XLA_EXT_CSRC_OPERATORS_POOLING_H_

#include <cstdint>
#include <optional>
#include <tuple>

#include "torch_xla_ext/csrc/operators/stock.h"

namespace torch_xla_ext::operators {

inline void CheckPool(const char* name, at::IntArrayRef kernel_size,
                      at::IntArrayRef stride, at::IntArrayRef padding) {
  for (size_t i = 0; i < kernel_size.size(); ++i) {
    const int64_t kernel = kernel_size[i];
    TORCH_CHECK(kernel > 0, name, ": kernel_size must be above 0, but is ",
                kernel_size);
    const int64_t pad = padding.size() == 1  ? padding[0]
                        : i < padding.size() ? padding[i]
                                             : 0;
    TORCH_CHECK(pad >= 0 && pad <= kernel / 2, name,
                ": padding must be 0 to half of kernel_size ", kernel_size,
                ", but is ", padding);
  }
  for (int64_t step : stride) {
    TORCH_CHECK(step > 0, name, ": stride must be above 0, but is ", stride);
  }
}

// The stock kernels ignore `divisor`, or use it wrongly: for integers, without
// count_include_pad, and with ceil_mode.
template <typename Operator, auto kStock>
at::Tensor AveragePool(const at::Tensor& self, at::IntArrayRef kernel_size,
                       at::IntArrayRef stride, at::IntArrayRef padding,
                       bool ceil_mode, bool count_include_pad,
                       std::optional<int64_t> divisor) {
  CheckPool("avg_pool", kernel_size, stride, padding);
  if (divisor.has_value() &&
      (ceil_mode || !at::isFloatingType(self.scalar_type()))) {
    return OnCpu<Operator>(self, kernel_size, stride, padding, ceil_mode,
                           count_include_pad, divisor);
  }
  return kStock(self, kernel_size, stride, padding, ceil_mode,
                count_include_pad || divisor.has_value(), divisor);
}

template <auto kStock>
auto MaxPool(const at::Tensor& self, at::IntArrayRef kernel_size,
             at::IntArrayRef stride, at::IntArrayRef padding,
             at::IntArrayRef dilation, bool ceil_mode) {
  CheckPool("max_pool", kernel_size, stride, padding);
  return kStock(self, kernel_size, stride, padding, dilation, ceil_mode);
}

// The stock kernel's maximum of negative numbers only, or of an empty bag, is
// wrong.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>
EmbeddingBagForwardOnly(const at::Tensor& weight, const at::Tensor& indices,
                        const at::Tensor& offsets, bool scale_grad_by_freq,
                        int64_t mode, bool sparse,
                        const std::optional<at::Tensor>& per_sample_weights,
                        bool include_last_offset, int64_t padding_idx) {
  constexpr int64_t kMax = 2;
  if (mode == kMax) {
    return OnCpu<at::_ops::_embedding_bag_forward_only>(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse,
        per_sample_weights, include_last_offset, padding_idx);
  }
  return Stock::_embedding_bag_forward_only(
      weight, indices, offsets, scale_grad_by_freq, mode, sparse,
      per_sample_weights, include_last_offset, padding_idx);
}

}  // namespace torch_xla_ext::operators

#endif  // TORCH_XLA_EXT_CSRC_OPERATORS_POOLING_H_
