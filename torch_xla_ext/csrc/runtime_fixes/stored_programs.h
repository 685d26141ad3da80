// Supports programs that are stored on disk for later processes
// (torch_xla.runtime.initialize_cache).
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_STORED_PROGRAMS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_STORED_PROGRAMS_H_

#include <torch/csrc/lazy/core/hash.h>

#include <string_view>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext {

// The part of a stored program's key besides the program: a hash of the code
// that compiled it, which is the library that contains this function and the
// PJRT plugin. A constant if programs are not stored.
//
// Kernels of other libraries are not covered: a program refers to them by name,
// and their payloads, attributes and aliases are in the program's own hash.
//
// `plugin` is null if there is none. Throws std::runtime_error if a file cannot
// be read.
torch::lazy::hash_t CompilerHash(const PJRT_Api* plugin);

// Whether a CPU program, given as HLO text, has a custom call that does
// not go through XLA's FFI. XLA's CPU client does not store whether the results
// of such a call are a tuple: the kernel of a loaded program would mistake one
// for the other, and write to a wrong address. So such programs are compiled
// again.
bool HasUntypedCalls(std::string_view hlo);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_STORED_PROGRAMS_H_
