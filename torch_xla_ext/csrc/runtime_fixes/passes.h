// The list of all passes over a program before it is compiled.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PASSES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PASSES_H_

#include <cstdint>
#include <optional>
#include <string>

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, after all
// passes; nothing if none changes it. `precision` is that of SetPrecision, 0
// for no change; `on_cpu` is true if XLA:CPU compiles the program.
std::optional<std::string> CorrectProgram(const std::string& module,
                                          uint64_t precision = 0,
                                          bool on_cpu = false);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PASSES_H_
