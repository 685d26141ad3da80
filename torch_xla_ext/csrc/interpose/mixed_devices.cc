// Interposes on bridge::GetXlaTensor: if an operator gets a tensor of another
// device besides XLA tensors, the error is one sentence. Upstream's has a C++
// stack of 25 to 44 lines.
//
// This works because the stock binary calls it through its PLT.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"

namespace torch_xla::bridge {

XLATensorPtr GetXlaTensor(const at::Tensor& tensor) {
  XLATensorPtr xla_tensor = TryGetXlaTensor(tensor);
  TORCH_CHECK(tensor.defined(), "expected an XLA tensor but got none");
  TORCH_CHECK(xla_tensor != nullptr,
              "expected all tensors to be on an XLA device but one, ",
              tensor.toString(), " of shape ", tensor.sym_sizes(), ", is on ",
              tensor.device(), ": move it with .to(\"xla\")");
  return xla_tensor;
}

}  // namespace torch_xla::bridge
