// Calls of custom-call targets without XLA, on torch's own CPU and CUDA
// tensors.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_DIRECT_CALL_H_
#define TORCH_XLA_EXT_CSRC_CALLS_DIRECT_CALL_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch_xla_ext {

// Calls the untyped target `target` of `platform` as XLA calls it with API
// version 3, its result being a tuple. A "Host" target is given CPU tensors and
// has run when this returns; a "CUDA" target is given CUDA tensors of one
// device, which must be the current one, and `stream`, on which it has
// launched.
//
// Throws std::invalid_argument if there is no such target, or a tensor is on
// another device or not contiguous, and std::runtime_error with the kernel's
// own text if it reports a failure.
void CallTarget(const std::string& target, const std::string& platform,
                const std::vector<at::Tensor>& operands,
                const std::string& payload,
                const std::vector<at::Tensor>& results, void* stream);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_DIRECT_CALL_H_
