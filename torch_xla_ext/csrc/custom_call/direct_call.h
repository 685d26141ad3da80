// Calls of custom-call targets without XLA, on torch's own CPU and CUDA
// tensors.
#ifndef TORCH_XLA_EXT_CSRC_CUSTOM_CALL_DIRECT_CALL_H_
#define TORCH_XLA_EXT_CSRC_CUSTOM_CALL_DIRECT_CALL_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch_xla_ext {

// Calls the untyped target `target` of `platform` as XLA does with API version
// 3 and a tuple result. A "Host" target receives CPU tensors and has run when
// this returns. A "CUDA" target receives CUDA tensors of one device, which must
// be the current one, and `stream`, on which it has launched its work when this
// returns.
//
// Throws std::invalid_argument if there is no such target, or a tensor is on
// another device or not contiguous, and std::runtime_error with the kernel's
// own text if it reports a failure.
void CallTarget(const std::string& target, const std::string& platform,
                const std::vector<at::Tensor>& operands,
                const std::string& payload,
                const std::vector<at::Tensor>& results, void* stream);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CUSTOM_CALL_DIRECT_CALL_H_
