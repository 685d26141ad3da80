// The target "XlaGpuCompiledKernel", which launches a compiled kernel: a
// handler of XLA's FFI. Its attributes, which xla_kernels/launch.py writes, are
// the members of CompiledKernelLaunch.
//
// It depends only on XLA's FFI, because other front ends than torch_xla use it,
// too (//integrations/torch_tpu).
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_COMPILED_KERNEL_HANDLER_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_COMPILED_KERNEL_HANDLER_H_

#include <exception>
#include <string>

#include "xla/ffi/api/c_api.h"

namespace torch_xla_ext {

inline constexpr char kCompiledKernelTarget[] = "XlaGpuCompiledKernel";

// The handler for the platform CUDA.
XLA_FFI_Error* CompiledKernelOnCuda(XLA_FFI_CallFrame* frame);

// The error message for a failed launch.
std::string CompiledKernelFailure(const std::string& kernel,
                                  const std::exception& error);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_COMPILED_KERNEL_HANDLER_H_
