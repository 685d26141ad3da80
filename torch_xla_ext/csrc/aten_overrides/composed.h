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
#include <utility>

#include "torch_xla_ext/csrc/aten_overrides/in_place_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/strides.h"
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

// In float32 for 16-bit results: the number of elements may exceed the largest
// float16. PyTorch refuses integers, whatever `dtype` is.
inline at::Tensor Nanmean(const at::Tensor& self, at::OptionalIntArrayRef dim,
                          bool keepdim, std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  if (!at::isReducedFloatingType(type) ||
      at::isIntegralType(self.scalar_type(), /*includeBool=*/true)) {
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
        IsTransformed() || tensor.scalar_type() != tensors[0].scalar_type()) {
      return at::native::einsum(equation, tensors, path);
    }
  }
  if (!HasOneSizeForEachLabel(equation, tensors)) {
    return at::native::einsum(equation, tensors, path);
  }
  return Upstream::einsum(equation, tensors, path);
}

// PyTorch's function adds a bias of another dtype where it does not call addmm,
// which refuses it.
inline at::Tensor LinearWithBias(const at::Tensor& input,
                                 const at::Tensor& weight,
                                 const std::optional<at::Tensor>& bias) {
  if (!bias || !bias->defined() || !input.is_xla() ||
      bias->scalar_type() == input.scalar_type()) {
    return at::native::linear(input, weight, bias);
  }
  const std::optional<at::Tensor> strided = WithStrides(input);
  TORCH_CHECK(input.dim() != 2 && strided && !strided->is_contiguous(),
              "self and mat2 must have the same dtype, but got ",
              bias->scalar_type(), " and ", weight.scalar_type());
  const at::Tensor product = at::matmul(input, weight.t());
  return at::add(product, *bias).to(product.scalar_type());
}

// PyTorch's functions read sizes that the tensors may not have, which crashes
// the process.
inline at::Tensor BatchNorm(const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias,
                            const std::optional<at::Tensor>& running_mean,
                            const std::optional<at::Tensor>& running_var,
                            bool training, double momentum, double eps,
                            bool cudnn_enabled) {
  TORCH_CHECK_INDEX(input.dim() >= 2 || input.sym_numel() == 0,
                    "batch_norm: expected an input with a batch and channels, "
                    "but got one of ",
                    input.sym_sizes());
  return at::native::batch_norm(input, weight, bias, running_mean, running_var,
                                training, momentum, eps, cudnn_enabled);
}

inline at::Tensor NllLossOfAnyRank(const at::Tensor& self,
                                   const at::Tensor& target,
                                   const std::optional<at::Tensor>& weight,
                                   int64_t reduction,
                                   c10::SymInt ignore_index) {
  TORCH_CHECK_VALUE(self.dim() > 0, "Expected 1 or more dimensions (got 0)");
  TORCH_CHECK_VALUE(self.dim() == 1 || target.dim() > 0,
                    "Expected input batch_size (", self.sym_size(0),
                    ") to match target batch_size, but the target has no "
                    "dimensions.");
  return at::native::nll_loss_nd_symint(self, target, weight, reduction,
                                        std::move(ignore_index));
}

// PyTorch has no functionalization for this operator.
inline at::Tensor& Polygamma_(at::Tensor& self, int64_t n) {
  CheckCast(FloatOf(self.scalar_type()), self);
  return self.copy_(at::polygamma(n, self));
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPOSED_H_
