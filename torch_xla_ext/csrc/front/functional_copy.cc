// Interposes on aten::copy for XLA tensors. It is the functional form of copy_
// and must leave its first argument unchanged, but the stock function writes to
// it. A torch.compile graph contains this form in place of copy_, so a later
// read of that argument would see the new value.
//
// This works because the stock binary calls it through its PLT.
#include <ATen/ATen.h>

namespace torch_xla {

struct XLANativeFunctions {
  static at::Tensor _copy_from(const at::Tensor& self, const at::Tensor& dst,
                               bool non_blocking);  // the stock binary's
  static at::Tensor copy(const at::Tensor& self, const at::Tensor& src,
                         bool non_blocking);
};

at::Tensor XLANativeFunctions::copy(const at::Tensor& self,
                                    const at::Tensor& src, bool non_blocking) {
  return _copy_from(src, at::empty_like(self), non_blocking);
}

}  // namespace torch_xla
