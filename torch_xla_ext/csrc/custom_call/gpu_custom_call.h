// Makes GPU custom calls of any target, for _xla_gpu_custom_call and
// BuildGpuCustomCall.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_GPU_CUSTOM_CALL_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_GPU_CUSTOM_CALL_H_

#include <string>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/custom_call.h"

namespace torch_xla_ext {

// The target that upstream torch_xla hardcodes.
inline constexpr char kDefaultGpuCustomCallTarget[] = "triton_kernel_call";

// The configuration of a call of `target`, except for the payload. The default
// target keeps API version 2; every other target gets version 3. On CUDA both
// make the same call; on the Host, version 3 is the only untyped one that
// passes the payload to the kernel.
CustomCallConfig GpuCustomCallConfig(std::string target);

// Implements torch_xla::BuildGpuCustomCall, here and in upstream's source.
// `output_shape` is a tuple.
std::vector<xla::XlaOp> BuildGpuCustomCall(std::vector<xla::XlaOp> inputs,
                                           const xla::Shape& output_shape,
                                           const std::string& payload,
                                           const std::string& target);

// Throws std::invalid_argument if `payload` parses as XLA:GPU's own
// GpuBackendConfig in JSON: XLA would then pass the kernel that message's
// `opaque` field, which is empty, instead of the payload.
void CheckGpuPayload(const std::string& target, const std::string& payload);

// The same for an untyped call of upstream's _xla_custom_call, whose callers
// may mean to configure XLA: throws only for an empty JSON object. A caller
// that passes any other object that XLA parses has named a field of
// GpuBackendConfig.
void CheckBackendConfig(const std::string& target,
                        const std::string& backend_config);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_GPU_CUSTOM_CALL_H_
