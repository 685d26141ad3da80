#include "torch_xla_ext/csrc/runtime/compile_turns.h"

namespace torch_xla_ext {

std::shared_mutex& CompileTurns() {
  static auto* const turns = new std::shared_mutex;  // threads may outlive main
  return *turns;
}

}  // namespace torch_xla_ext
