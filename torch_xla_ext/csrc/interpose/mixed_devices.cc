// Interposes on bridge::GetXlaTensor: a tensor of another device raises an
// error of one sentence, without a C++ stack.
//
// This works because the upstream binary calls it through its PLT.
#include "torch_xla_ext/csrc/runtime_fixes/mixed_devices.h"

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"

namespace torch_xla::bridge {

XLATensorPtr GetXlaTensor(const at::Tensor& tensor) {
  XLATensorPtr xla_tensor = TryGetXlaTensor(tensor);
  torch_xla_ext::CheckIsXlaTensor(tensor, xla_tensor != nullptr);
  return xla_tensor;
}

}  // namespace torch_xla::bridge
