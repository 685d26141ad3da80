// Operators that PyTorch composes of others, and knows a gradient of.
//
// torch_xla has kernels of its own for some of them, of which PyTorch knows no
// gradient. torch.compile would therefore return none: after
// `F.kl_div(x, y).backward()`, x.grad was None, with a warning. Registered for
// AutogradXLA, the compositions are taken apart before autograd.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPOSED_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPOSED_H_

#include <ATen/NativeFunctions.h>

#include <optional>
#include <string_view>

#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

inline at::Tensor StdOfAll(const at::Tensor& self, bool unbiased) {
  return at::native::std(self, unbiased);
}

inline at::Tensor StdOfDimensions(const at::Tensor& self,
                                  at::OptionalIntArrayRef dim, bool unbiased,
                                  bool keepdim) {
  return at::native::std(self, dim, unbiased, keepdim);
}

// The number of elements may be above the largest float16.
inline at::Tensor Nanmean(const at::Tensor& self, at::OptionalIntArrayRef dim,
                          bool keepdim, std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  if (!at::isReducedFloatingType(type)) {
    return at::native::nanmean(self, dim, keepdim, dtype);
  }
  return at::native::nanmean(self.to(type), dim, keepdim, at::kFloat).to(type);
}

// The upstream kernel's gradient is not that of complex numbers.
inline at::Tensor Einsum(std::string_view equation, at::TensorList tensors,
                         at::OptionalIntArrayRef path) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_complex()) return at::native::einsum(equation, tensors, path);
  }
  return Upstream::einsum(equation, tensors, path);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPOSED_H_
