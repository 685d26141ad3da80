// The handler of torch_xla_gpu.cuda_kernel, which Python registers by this
// name.
#include "torch_xla_ext/csrc/launchers/compiled_kernel_handler.h"

extern "C" __attribute__((visibility("default"))) XLA_FFI_Error*
XlaGpuCompiledKernel(XLA_FFI_CallFrame* frame) {
  return torch_xla_ext::CompiledKernelOnCuda(frame);
}
