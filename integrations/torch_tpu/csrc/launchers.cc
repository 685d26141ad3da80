// Launches of compiled kernels, and functions of TVM-FFI, for Python.
#include <cstdint>
#include <exception>

#include "integrations/torch_tpu/csrc/front.h"
#include "torch_xla_ext/csrc/launchers/compiled_kernel.h"
#include "torch_xla_ext/csrc/launchers/compiled_kernel_handler.h"
#include "torch_xla_ext/csrc/launchers/tvm_ffi_function.h"
#include "torch_xla_ext/csrc/launchers/tvm_ffi_handler.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Returns null, or the text of the exception that the function throws.
template <typename Function>
const char* Try(const Function& function) {
  try {
    function();
    return nullptr;
  } catch (const std::exception& error) {
    return torch_xla_gpu::Failed(error.what());
  }
}

torch_xla_ext::BufferAddresses AddressesOf(const uintptr_t* addresses,
                                           size_t size) {
  return {size, [addresses](size_t i) {
            return reinterpret_cast<void*>(addresses[i]);
          }};
}

}  // namespace

// The handler of compiled kernels, which Python registers by this name.
EXPORT XLA_FFI_Error* XlaGpuCompiledKernel(XLA_FFI_CallFrame* frame) {
  return torch_xla_ext::CompiledKernelOnCuda(frame);
}

EXPORT const char* TorchXlaGpuLaunch(const torch_xla_gpu::Launch* launch,
                                     const uintptr_t* operands,
                                     size_t num_operands,
                                     const uintptr_t* results,
                                     size_t num_results, uintptr_t stream) {
  const auto three = [](const unsigned* numbers) {
    return std::array<unsigned, 3>{numbers[0], numbers[1], numbers[2]};
  };
  const torch_xla_ext::CompiledKernelLaunch described = {
      {launch->module, launch->module_size},
      launch->digest,
      launch->kernel,
      three(launch->grid),
      three(launch->block),
      three(launch->cluster),
      launch->shared,
      launch->cooperative,
      launch->dependent,
      launch->spread,
      launch->parameters,
  };
  try {
    torch_xla_ext::LaunchCompiledKernel(
        reinterpret_cast<CUstream>(stream), described,
        AddressesOf(operands, num_operands), AddressesOf(results, num_results));
    return nullptr;
  } catch (const std::exception& error) {
    return torch_xla_gpu::Failed(
        torch_xla_ext::CompiledKernelFailure(launch->kernel, error));
  }
}

EXPORT const char* TorchXlaGpuLoadTvmFfi(const char* path) {
  return Try([&] { torch_xla_ext::tvm_ffi::LoadLibrary(path); });
}

EXPORT const char* TorchXlaGpuTvmFfiFunction(const char* library,
                                             const char* symbol,
                                             uintptr_t* function) {
  return Try([&] {
    *function = reinterpret_cast<uintptr_t>(
        torch_xla_ext::tvm_ffi::FunctionOfLibrary(library, symbol).Release());
  });
}

EXPORT const char* TorchXlaGpuTvmFfiHandler(const char* name, bool on_host,
                                            uintptr_t function,
                                            const char* const* arguments,
                                            size_t num_arguments,
                                            bool in_graphs, const char* schema,
                                            uintptr_t* handler) {
  return Try([&] {
    *handler = reinterpret_cast<uintptr_t>(
        torch_xla_ext::HandlerOf({name,
                                  on_host,
                                  function,
                                  {arguments, arguments + num_arguments},
                                  in_graphs,
                                  schema}));
  });
}
