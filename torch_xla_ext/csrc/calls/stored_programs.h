// Programs that are stored on disk (torch_xla.runtime.initialize_cache), for
// later processes.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_STORED_PROGRAMS_H_
#define TORCH_XLA_EXT_CSRC_CALLS_STORED_PROGRAMS_H_

#include <torch/csrc/lazy/core/hash.h>

#include <string_view>

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext {

// What a stored program's key has to cover beside the program: the code that
// made it, by the content of two files, the library that this function is in
// and the PJRT plugin. A constant where programs are not stored.
//
// Kernels of other libraries are not part of it: a program has their names, and
// what it got of them (payloads, attributes, aliases) is in its own hash.
//
// `plugin` is null if there is none. Throws std::runtime_error if a file cannot
// be read.
torch::lazy::hash_t CompilerHash(const PJRT_Api* plugin);

// Whether a program of the CPU, given as the text of its HLO, has a custom call
// that is not typed. XLA's CPU client does not store whether the results of
// such a call are a tuple: the kernel of a loaded program would take one for
// the other, and write to a wrong address. So such programs are compiled again.
bool HasUntypedCalls(std::string_view hlo);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_STORED_PROGRAMS_H_
