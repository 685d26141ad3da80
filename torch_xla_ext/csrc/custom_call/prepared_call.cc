#include "torch_xla_ext/csrc/custom_call/prepared_call.h"

namespace torch_xla_ext {

std::vector<at::Tensor> PreparedCall::Trace(
    const std::vector<torch_xla::XLATensorPtr>& inputs) const {
  return torch_xla::bridge::AtenFromXlaTensors(
      TraceCustomCall(kind, inputs, outputs, config));
}

}  // namespace torch_xla_ext
