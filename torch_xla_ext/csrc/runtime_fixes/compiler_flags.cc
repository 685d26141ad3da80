#include "torch_xla_ext/csrc/runtime_fixes/compiler_flags.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace torch_xla_ext {
namespace {

constexpr char kFlags[] = "XLA_FLAGS";
// xla_kernels/plugin/discovery.py describes this variable.
constexpr char kAdded[] = "TORCH_XLA_EXT_ADDED_XLA_FLAGS";

std::vector<std::string> Words(const char* variable) {
  const char* const text = std::getenv(variable);
  std::istringstream stream(text == nullptr ? "" : text);
  return {std::istream_iterator<std::string>(stream), {}};
}

bool Set() {
  const char* device = std::getenv("PJRT_DEVICE");
  // A plugin has its own compiler, which may not know the flag.
  if (device == nullptr || std::string_view(device) != "CPU") return false;
  const std::string added =
      "--xla_cpu_enable_fast_min_max=false --xla_allow_excess_precision=false";
  std::string flags = added;
  const std::vector<std::string> inherited = Words(kAdded);
  for (const std::string& flag : Words(kFlags)) {
    if (std::find(inherited.begin(), inherited.end(), flag) ==
        inherited.end()) {
      flags += " " + flag;
    }
  }
  return setenv(kFlags, flags.c_str(), /*overwrite=*/1) == 0 &&
         setenv(kAdded, added.c_str(), /*overwrite=*/1) == 0;
}

}  // namespace

void SetCompilerFlags() {
  static const bool is_set = Set();
  static_cast<void>(is_set);
}

}  // namespace torch_xla_ext
