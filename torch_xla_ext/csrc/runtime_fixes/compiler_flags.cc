#include "torch_xla_ext/csrc/runtime_fixes/compiler_flags.h"

#include <cstdlib>
#include <string>
#include <string_view>

namespace torch_xla_ext {
namespace {

bool Set() {
  const char* device = std::getenv("PJRT_DEVICE");
  // A plugin has its own compiler, which may not know the flag.
  if (device == nullptr || std::string_view(device) != "CPU") return false;
  const char* own = std::getenv("XLA_FLAGS");
  const std::string flags =
      std::string("--xla_cpu_enable_fast_min_max=false ") +
      (own == nullptr ? "" : own);
  return setenv("XLA_FLAGS", flags.c_str(), /*overwrite=*/1) == 0;
}

}  // namespace

void SetCompilerFlags() {
  static const bool is_set = Set();
  static_cast<void>(is_set);
}

}  // namespace torch_xla_ext
