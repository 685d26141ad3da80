// If an operator gets a tensor of another device besides XLA tensors, the error
// is one sentence. Upstream's has a C++ stack of 25 to 44 lines.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_MIXED_DEVICES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_MIXED_DEVICES_H_

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace torch_xla_ext {

// Throws unless `is_xla`, which says whether `tensor` is an XLA tensor.
inline void CheckIsXlaTensor(const at::Tensor& tensor, bool is_xla) {
  TORCH_CHECK(tensor.defined(), "expected an XLA tensor but got none");
  TORCH_CHECK(is_xla, "expected all tensors to be on an XLA device but one, ",
              tensor.toString(), " of shape ", tensor.sym_sizes(), ", is on ",
              tensor.device(), ": move it with .to(\"xla\")");
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_MIXED_DEVICES_H_
