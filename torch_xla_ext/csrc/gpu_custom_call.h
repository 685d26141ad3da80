// A GPU custom call by the name of its target.
#ifndef TORCH_XLA_EXT_CSRC_GPU_CUSTOM_CALL_H_
#define TORCH_XLA_EXT_CSRC_GPU_CUSTOM_CALL_H_

#include <string>
#include <vector>

#include "torch_xla_ext/csrc/custom_call.h"

namespace torch_xla_ext {

// The target that stock torch_xla hardcodes.
inline constexpr char kDefaultGpuCustomCallTarget[] = "triton_kernel_call";

// What `target` is called with. The default target keeps API version 2; every
// other gets version 3, which on CUDA is the same call and on the Host is the
// only untyped one that hands the payload to the kernel.
CustomCallConfig GpuCustomCallConfig(std::string target, std::string payload);

// Throws std::invalid_argument if XLA:GPU would take `payload` for its own
// GpuBackendConfig in JSON: it then hands the kernel that message's `opaque`
// field, which is empty, instead of the payload.
void CheckGpuPayload(const std::string& target, const std::string& payload);

}  // namespace torch_xla_ext

namespace torch_xla {

// The name and the place of upstream's function (xla_lower_util.h), with the
// target as its argument. `output_shape` is a tuple.
std::vector<xla::XlaOp> BuildGpuCustomCall(
    const std::vector<xla::XlaOp>& inputs, const xla::Shape& output_shape,
    const std::string& payload, const std::string& target);

// Upstream's own signature, which the stock binary calls: the default target.
std::vector<xla::XlaOp> BuildGpuCustomCall(
    const std::vector<xla::XlaOp>& inputs, const xla::Shape& output_shape,
    const std::string& payload);

}  // namespace torch_xla

#endif  // TORCH_XLA_EXT_CSRC_GPU_CUSTOM_CALL_H_
