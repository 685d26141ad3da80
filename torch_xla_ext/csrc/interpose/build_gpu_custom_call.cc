// Replaces torch_xla::BuildGpuCustomCall, which upstream's C++ code calls to
// build a GPU custom call. Here the call's arrays are row-major, as in every
// other call, and it has a target.
//
// Upstream's function accepts any layout of its operands, so a kernel receives
// a transposed operand column-major. Replacing it works because the upstream
// binary calls it only from GpuCustomCall::Lower, through its PLT.
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/gpu_custom_call.h"

namespace torch_xla {

// The same signature as in upstream's source with patches/*/0001.
std::vector<xla::XlaOp> BuildGpuCustomCall(
    const std::vector<xla::XlaOp>& inputs, const xla::Shape& output_shape,
    const std::string& payload, const std::string& target) {
  return torch_xla_ext::BuildGpuCustomCall(inputs, output_shape, payload,
                                           target);
}

// Upstream's own signature.
std::vector<xla::XlaOp> BuildGpuCustomCall(
    const std::vector<xla::XlaOp>& inputs, const xla::Shape& output_shape,
    const std::string& payload) {
  return torch_xla_ext::BuildGpuCustomCall(
      inputs, output_shape, payload,
      torch_xla_ext::kDefaultGpuCustomCallTarget);
}

}  // namespace torch_xla
