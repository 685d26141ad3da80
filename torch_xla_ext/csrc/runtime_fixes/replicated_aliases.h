// Corrects a program whose results are not divided as expected.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_REPLICATED_ALIASES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_REPLICATED_ALIASES_H_

#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns `module`, a serialized xla::HloModuleProto with several devices, in
// which XLA pairs the replicated parameters that it may overwrite with results;
// nothing if no such parameter is paired with one already.
//
// For programs that do not compile with SetAliases' pairs, because XLA divides
// the result of a replicated parameter, such as the state of an optimizer in
// the first step.
std::optional<std::string> WithoutReplicatedAliases(const std::string& module);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_REPLICATED_ALIASES_H_
