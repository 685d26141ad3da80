// Errors and warnings for operators that receive tensors of other devices with
// XLA tensors.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_MIXED_DEVICES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_MIXED_DEVICES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace torch_xla_ext {

// Throws unless `tensor` is an XLA tensor, as `is_xla` reports. The error is
// one sentence; upstream's has a C++ stack of 25 to 44 lines.
inline void CheckIsXlaTensor(const at::Tensor& tensor, bool is_xla) {
  TORCH_CHECK(tensor.defined(), "expected an XLA tensor but got none");
  TORCH_CHECK(is_xla || !tensor.is_xla(),
              "expected a tensor with data but got a fake or meta tensor, ",
              tensor.toString(), " of shape ", tensor.sym_sizes(),
              ": it cannot be part of a traced program");
  TORCH_CHECK(is_xla, "expected all tensors to be on an XLA device but one, ",
              tensor.toString(), " of shape ", tensor.sym_sizes(), ", is on ",
              tensor.device(), ": move it with .to(\"xla\")");
}

// Warns, once per line of the user's program, that an elementwise operator
// copies `tensor`, which is on the CPU, to `device` at each call, as upstream
// does.
//
// Throws instead if TORCH_XLA_EXT_MIXED_DEVICES=error.
void ReportCopyToDevice(const at::Tensor& tensor, at::Device device);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_MIXED_DEVICES_H_
