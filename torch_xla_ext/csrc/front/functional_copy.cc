// Stands before aten::copy on XLA tensors, the functional form of copy_, which
// leaves its first argument as it is: the stock one writes to it. A graph of
// torch.compile has this form in place of copy_, and what it reads of that
// argument afterwards would be the new value.
//
// It may, because the stock binary calls it through its PLT.
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
