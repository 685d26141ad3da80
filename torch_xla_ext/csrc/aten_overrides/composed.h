// Operators that PyTorch composes of other operators, whose gradients it knows.
//
// For some of them torch_xla has its own kernels, whose gradients PyTorch does
// not know: after `F.kl_div(x, y).backward()` under torch.compile, x.grad is
// None, with a warning. Here the compositions are registered for AutogradXLA,
// and so run before autograd.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPOSED_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPOSED_H_

#include <ATen/NativeFunctions.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "torch_xla_ext/csrc/aten_overrides/in_place_checks.h"
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

// The number of elements may exceed the largest float16.
inline at::Tensor Nanmean(const at::Tensor& self, at::OptionalIntArrayRef dim,
                          bool keepdim, std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  if (!at::isReducedFloatingType(type)) {
    return at::native::nanmean(self, dim, keepdim, dtype);
  }
  return at::native::nanmean(self.to(type), dim, keepdim, at::kFloat).to(type);
}

// Whether each operand has one size for a label, and all have the same.
inline bool HasOneSizeForEachLabel(std::string_view equation,
                                   at::TensorList tensors) {
  std::array<int64_t, 128> sizes;
  sizes.fill(-1);
  const std::string_view operands = equation.substr(0, equation.find("->"));
  size_t position = 0;
  for (const at::Tensor& tensor : tensors) {
    const size_t end = std::min(operands.find(',', position), operands.size());
    std::string labels;
    for (const char label : operands.substr(position, end - position)) {
      if (label != ' ') labels += label;
    }
    const size_t dots = labels.find("...");
    const size_t count = labels.size() - (dots == labels.npos ? 0 : 3);
    const size_t rank = tensor.dim();
    if (dots == labels.npos ? count != rank : count > rank) return false;
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] == '.') continue;
      const int64_t size = tensor.size(i < dots ? i : rank - labels.size() + i);
      int64_t& known = sizes[labels[i] & 127];
      if (known != -1 && known != size) return false;
      known = size;
    }
    position = std::min(end + 1, operands.size());
  }
  return true;
}

// The upstream kernel's gradient is wrong for complex numbers. It accepts sizes
// and dtypes that PyTorch refuses, or broadcasts, and no dispatch mode sees it.
inline at::Tensor Einsum(std::string_view equation, at::TensorList tensors,
                         at::OptionalIntArrayRef path) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_complex() || IsSeenByPython(tensor) || HasTangent(tensor) ||
        tensor.scalar_type() != tensors[0].scalar_type()) {
      return at::native::einsum(equation, tensors, path);
    }
  }
  if (!HasOneSizeForEachLabel(equation, tensors)) {
    return at::native::einsum(equation, tensors, path);
  }
  return Upstream::einsum(equation, tensors, path);
}

// PyTorch has no functionalization for this operator.
inline at::Tensor& Polygamma_(at::Tensor& self, int64_t n) {
  CheckCast(FloatOf(self.scalar_type()), self);
  return self.copy_(at::polygamma(n, self));
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPOSED_H_
