// Adapters between XLA and the handlers of an FFI target's stages, for XLA
// versions that call handlers differently from what the handlers' headers
// promise.
//
// - XLA:CPU calls `instantiate` and `execute`. The adapter calls the other two
//   stages before each `execute`, as XLA:GPU does for each execution.
// - A plugin with XLA FFI 0.2 or newer misreads the structure with which a
//   handler of version 0.1, that of this wheel's headers, sets its state; from
// version 0.3 on it also passes operands to `instantiate`, and accepts the
// older structures for setting and getting states only until 2027-02-15.
// - A plugin before version 3 of its extension does not accept traits with a
// target, but asks the handler for them.
#ifndef TORCH_XLA_EXT_CSRC_REGISTRY_STAGES_H_
#define TORCH_XLA_EXT_CSRC_REGISTRY_STAGES_H_

#include <cstdint>
#include <string>

#include "torch_xla_ext/csrc/pjrt_shim/targets.h"

namespace torch_xla_ext {

// The maximum number of targets with an adapter.
inline constexpr size_t kMaxAdaptedTargets = 512;

// Return the functions to register with XLA for the target `name` with
// `functions`; the same for equal functions. Throw std::runtime_error if there
// are too many targets.
TargetFunctions FunctionsForHost(const std::string& name,
                                 const TargetFunctions& functions);
TargetFunctions FunctionsForPlugin(const std::string& name,
                                   const TargetFunctions& functions,
                                   bool takes_traits);

// The deleter for a type that a plugin registers without a deleter: it calls
// the deleter that the handler passed with the state.
void DeleteState(void* state);

// Records that another function deletes the states of a type.
void SetHasDeleter(int64_t type_id);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_REGISTRY_STAGES_H_
