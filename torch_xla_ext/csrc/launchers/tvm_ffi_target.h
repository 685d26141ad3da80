// Registers functions of the TVM-FFI ABI as FFI targets, each under its own
// name.
//
// XLA calls a target through the address of a C function, which does not
// receive the target's name. So each target needs its own C function, of which
// the library has a fixed number.
#ifndef TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_TARGET_H_
#define TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_TARGET_H_

#include <cstdint>
#include <string>
#include <vector>

namespace torch_xla_ext {

// Registers a function, by its handle, as the target `name`. `arguments` are
// the words that tvm_ffi::Word parses. `in_graphs` says whether CUDA graphs may
// capture its calls. Python checks calls with `schema`, which may be empty.
// Throws like RegisterTarget, and std::runtime_error if all C functions are in
// use.
void RegisterTvmFfiKernel(const std::string& name, const std::string& platform,
                          uintptr_t function,
                          std::vector<std::string> arguments, bool in_graphs,
                          std::string schema);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_LAUNCHERS_TVM_FFI_TARGET_H_
