// Replaces torch_xla::BuildGpuCustomCall, by which upstream's own C++ callers
// make a GPU custom call: row-major, as every other, and with a target.
//
// Upstream's takes the layouts that its operands happen to have, so that a
// kernel gets a transposed operand column-major. It may be replaced, because
// the stock binary calls it from GpuCustomCall::Lower alone, through its PLT.
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/calls/gpu_custom_call.h"

namespace torch_xla {

// As in upstream's source with patches/*/0001.
std::vector<xla::XlaOp> BuildGpuCustomCall(
    const std::vector<xla::XlaOp>& inputs, const xla::Shape& output_shape,
    const std::string& payload, const std::string& target) {
  return torch_xla_ext::BuildGpuCustomCall(inputs, output_shape, payload,
                                           target);
}

// Upstream's own.
std::vector<xla::XlaOp> BuildGpuCustomCall(
    const std::vector<xla::XlaOp>& inputs, const xla::Shape& output_shape,
    const std::string& payload) {
  return torch_xla_ext::BuildGpuCustomCall(
      inputs, output_shape, payload,
      torch_xla_ext::kDefaultGpuCustomCallTarget);
}

}  // namespace torch_xla
