// Masks that are filled with one value, whose dtype may be another one than the
// tensor's.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_MASKED_FILL_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_MASKED_FILL_H_

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// Whether only the number itself tells if PyTorch accepts it: a complex one
// without an imaginary part for a real tensor.
inline bool IsReadToFill(const at::Tensor& self, const at::Tensor& value) {
  return value.is_complex() && !self.is_complex() && value.numel() == 1;
}

// Reads the value, and throws PyTorch's error unless the tensor's dtype has it.
inline at::Scalar ReadToFill(const at::Tensor& self, const at::Tensor& value) {
  const at::Scalar number = value.item();
  return AT_DISPATCH_ALL_TYPES_AND3(
      at::kBool, at::kHalf, at::kBFloat16, self.scalar_type(), "masked_fill_",
      [&] { return at::Scalar(number.to<scalar_t>()); });
}

inline at::Tensor MaskedFill(const at::Tensor& self, const at::Tensor& mask,
                             const at::Tensor& value) {
  return IsReadToFill(self, value)
             ? at::masked_fill(self, mask, ReadToFill(self, value))
             : Upstream::masked_fill(self, mask, value);
}

// The kernel for functionalization, whose function for meta tensors refuses all
// complex values.
struct MaskedFill_ {
  static at::Tensor& Call(c10::DispatchKeySet keys, at::Tensor& self,
                          const at::Tensor& mask, const at::Tensor& value) {
    if (self.is_xla() && value.dim() == 0 && IsReadToFill(self, value)) {
      return self.masked_fill_(mask, ReadToFill(self, value));
    }
    return RegisteredKernel<at::_ops::masked_fill__Tensor, MaskedFill_,
                            c10::DispatchKey::Functionalize>::
        Call<at::Tensor&, at::Tensor&, const at::Tensor&, const at::Tensor&>(
            keys, self, mask, value);
  }

  static void Register(torch::Library& m) {
    RegisteredKernel<at::_ops::masked_fill__Tensor, MaskedFill_,
                     c10::DispatchKey::Functionalize>::Replace(m,
                                                               TORCH_FN(Call));
  }
};

// The value of `x[mask] = value`, of the tensor's dtype.
inline at::Tensor ValueOfMask(const at::Tensor& self, const at::Tensor& value) {
  return IsReadToFill(self, value)
             ? at::full(value.sizes(), ReadToFill(self, value), self.options())
             : value.to(self.scalar_type());
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_MASKED_FILL_H_
