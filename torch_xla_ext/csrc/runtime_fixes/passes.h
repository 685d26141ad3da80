// The list of all passes over a program before it is compiled.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PASSES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PASSES_H_

#include <optional>
#include <string>

#include "torch_xla_ext/csrc/runtime_fixes/precision.h"

namespace torch_xla_ext {

// Returns the program `module`, a serialized xla::HloModuleProto, after all
// passes; nothing if none changes it. `precisions` is that of SetPrecision;
// `on_cpu` is true if XLA:CPU compiles the program.
std::optional<std::string> CorrectProgram(const std::string& module,
                                          const Precisions& precisions = {},
                                          bool on_cpu = false);

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_PASSES_H_
