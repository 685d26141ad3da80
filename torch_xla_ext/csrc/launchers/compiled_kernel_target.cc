// Registers the target "XlaGpuCompiledKernel".
#include "torch_xla_ext/csrc/launchers/compiled_kernel_handler.h"
#include "torch_xla_ext/csrc/registry/registration.h"

namespace torch_xla_ext::compiled_kernel_target {
namespace {

const bool registered = [] {
  RegisterTarget(kCompiledKernelTarget,
                 reinterpret_cast<void*>(&CompiledKernelOnCuda), kCudaPlatform,
                 TargetApi::kFfi);
  return true;
}();

}  // namespace
}  // namespace torch_xla_ext::compiled_kernel_target
