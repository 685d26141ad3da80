// A PJRT plugin in front of the real one, for torch-tpu.
//
// torch-tpu loads the plugin that TPU_LIBRARY_PATH names, and assumes that it
// is for TPUs. This library, given there, returns the API of XLA's CUDA or CPU
// plugin with two changes: PJRT_Client_Create receives options for that plugin,
// which refuses a TPU's (premapped_buffer_size), and an extension reports the
// number of chips.
//
// torch-tpu aborts the process if there is no client. So this library makes the
// client earlier, and returns a failure as text.
//
// Python calls the functions (torch_xla_gpu/front.py). Those that can fail
// return null, or a text, which the next call in this thread replaces.
#ifndef INTEGRATIONS_TORCH_TPU_CSRC_FRONT_H_
#define INTEGRATIONS_TORCH_TPU_CSRC_FRONT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_gpu {

// The oldest API that torch-tpu 0.2.0 was run with: that of JAX's plugins
// 0.11.2.
inline constexpr int kOldestMinor = 114;

// An option of a client. `type` is a PJRT_NamedValue_Type and says which value
// counts; `size` is the number of integers.
struct Option {
  const char* name;
  int32_t type;
  const char* string;
  const int64_t* integers;
  size_t size;
  float real;
  bool boolean;
};

// A launch of a compiled kernel
// (torch_xla_ext/csrc/launchers/compiled_kernel.h).
struct Launch {
  const char* module;
  size_t module_size;
  const char* digest;
  const char* kernel;
  const char* parameters;
  unsigned grid[3], block[3], cluster[3];
  int32_t shared;
  bool cooperative, dependent, spread;
};

// Keeps a function's error message for the thread, and returns it.
const char* Failed(std::string text);

}  // namespace torch_xla_gpu

extern "C" {

// Loads the plugin at `path` and checks that its API is one that torch-tpu can
// use. Loading the same plugin again does nothing.
const char* TorchXlaGpuLoad(const char* path);

// Makes the client of the loaded plugin that torch-tpu will get.
const char* TorchXlaGpuCreateClient(const torch_xla_gpu::Option* options,
                                    size_t size);

// Registers a handler of XLA's FFI with the loaded plugin, for the platform
// "CUDA" or "Host". The name must be new.
const char* TorchXlaGpuRegisterHandler(const char* name, const char* platform,
                                       void* handler);

// Enqueues a launch on a stream of the current context. The arrays are given by
// their addresses.
const char* TorchXlaGpuLaunch(const torch_xla_gpu::Launch* launch,
                              const uintptr_t* operands, size_t num_operands,
                              const uintptr_t* results, size_t num_results,
                              uintptr_t stream);

// Loads libtvm_ffi, unless this process has done so already.
const char* TorchXlaGpuLoadTvmFfi(const char* path);

// Finds a TVM-FFI function: its handle, or 0 if the library has none.
const char* TorchXlaGpuTvmFfiFunction(const char* library, const char* symbol,
                                      uintptr_t* function);

// Makes a handler of XLA's FFI for a TVM-FFI function, by the function's handle
// (torch_xla_ext/csrc/launchers/tvm_ffi_handler.h).
const char* TorchXlaGpuTvmFfiHandler(const char* name, bool on_host,
                                     uintptr_t function,
                                     const char* const* arguments,
                                     size_t num_arguments, bool in_graphs,
                                     const char* schema, uintptr_t* handler);

// The loaded plugin's API version, major and minor; 0 before TorchXlaGpuLoad.
void TorchXlaGpuApiVersion(int32_t* major, int32_t* minor);

// Called by torch-tpu. Null before TorchXlaGpuLoad.
const PJRT_Api* GetPjrtApi();

}  // extern "C"

#endif  // INTEGRATIONS_TORCH_TPU_CSRC_FRONT_H_
