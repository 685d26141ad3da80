#include "torch_xla_ext/csrc/runtime/compile_turns.h"

namespace torch_xla_ext {

CompileTurns& CompileTurns::Get() {
  static auto* const turns = new CompileTurns;  // threads may outlive main
  return *turns;
}

}  // namespace torch_xla_ext
