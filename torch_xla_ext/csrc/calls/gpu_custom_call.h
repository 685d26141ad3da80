// What _xla_gpu_custom_call and BuildGpuCustomCall call: a target by its name.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_GPU_CUSTOM_CALL_H_
#define TORCH_XLA_EXT_CSRC_CALLS_GPU_CUSTOM_CALL_H_

#include <string>
#include <vector>

#include "torch_xla_ext/csrc/calls/custom_call.h"

namespace torch_xla_ext {

// The target that stock torch_xla hardcodes.
inline constexpr char kDefaultGpuCustomCallTarget[] = "triton_kernel_call";

// What `target` is called with, but for the payload. The default target keeps
// API version 2; every other gets version 3, which on CUDA is the same call and
// on the Host is the only untyped one that hands the payload to the kernel.
CustomCallConfig GpuCustomCallConfig(std::string target);

// What torch_xla::BuildGpuCustomCall does, here and in upstream's source.
// `output_shape` is a tuple.
std::vector<xla::XlaOp> BuildGpuCustomCall(std::vector<xla::XlaOp> inputs,
                                           const xla::Shape& output_shape,
                                           const std::string& payload,
                                           const std::string& target);

// Whether XLA:GPU runs calls of `target` itself, by cuDNN: no kernel is
// registered, and the payload is a GpuBackendConfig in JSON. The last result is
// the call's workspace. XLA writes its size into the shape when it compiles the
// program, so that nothing may read it.
bool RunsByCudnn(const std::string& target);

// Throws std::invalid_argument if XLA:GPU would take `payload` for its own
// GpuBackendConfig in JSON: it then hands the kernel that message's `opaque`
// field, which is empty, instead of the payload.
void CheckGpuPayload(const std::string& target, const std::string& payload);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_GPU_CUSTOM_CALL_H_
