// Handlers of XLA's FFI that call functions of the TVM-FFI ABI.
//
// XLA calls a handler through the address of a C function, and does not pass
// the target's name. So each target needs its own C function, of which the
// library has a fixed number.
//
// It needs only XLA's FFI, because front ends other than torch_xla use it, too
// (//integrations/torch_tpu).
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_HANDLER_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_HANDLER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace torch_xla_ext {

// A TVM-FFI function as the target `name`.
struct TvmFfiKernel {
  std::string name;
  bool on_host;  // its tensors are the CPU's, not a GPU's
  // The function's handle. It is never freed: programs may call it.
  uintptr_t function;
  std::vector<std::string> arguments;  // the words that Word::Parse reads
  bool in_graphs;                      // may be captured into CUDA graphs
  std::string schema;  // Python checks calls with it; may be empty

  bool operator==(const TvmFfiKernel& other) const {
    return name == other.name && on_host == other.on_host &&
           function == other.function && arguments == other.arguments &&
           in_graphs == other.in_graphs && schema == other.schema;
  }
};

// The handler of a kernel; equal kernels share one. Throws
// std::invalid_argument for an unknown word, and std::runtime_error if all C
// functions are in use.
XLA_FFI_Handler* HandlerOf(TvmFfiKernel kernel);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_HANDLER_H_
