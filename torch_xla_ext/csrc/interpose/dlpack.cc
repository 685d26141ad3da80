// Interposes on the function that makes an XLA tensor of another library's
// memory, which may be transposed (runtime_fixes/dlpack.h).
//
// This works because the upstream binary calls it through its PLT.
#include "torch_xla_ext/csrc/runtime_fixes/dlpack.h"

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"

namespace torch_xla {

at::Tensor fromDLPack(DLManagedTensor* src) {
  static const auto upstream = UpstreamFunction(&fromDLPack);
  return torch_xla_ext::FromDlpack(src, upstream);
}

}  // namespace torch_xla
