#include "torch_xla_ext/csrc/runtime_fixes/memory_mappings.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>

namespace torch_xla_ext {
namespace {

// Counting takes milliseconds if there are many mappings, so most calls do not
// count. The last eighth of the limit is reserved for programs that are
// compiled between two counts.
constexpr int kCallsBetweenCounts = 16;

int64_t CountMappings() {
  std::ifstream mappings("/proc/self/maps");
  return std::count(std::istreambuf_iterator<char>(mappings),
                    std::istreambuf_iterator<char>(), '\n');
}

// 0 if the limit is unknown.
int64_t MappingsLimit() {
  int64_t limit = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  return limit;
}

}  // namespace

void CheckMemoryMappings() {
  static std::mutex mutex;
  static int calls_until_count = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (calls_until_count-- > 0) return;
  const int64_t limit = MappingsLimit();
  const int64_t count = CountMappings();
  if (limit > 0 && count > limit - limit / 8) {
    calls_until_count = 0;  // the next call counts again
    throw std::runtime_error(
        "The process has " + std::to_string(count) +
        " memory mappings, and may have " + std::to_string(limit) +
        " (vm.max_map_count). XLA:CPU needs dozens to hundreds for each "
        "compiled program, and the process would die at the limit. Keep fewer "
        "programs: set XLA_COMPILATION_CACHE_SIZE=200 (2048 by default) before "
        "the start; or raise the limit: sysctl -w vm.max_map_count=1048576.");
  }
  calls_until_count = kCallsBetweenCounts;
}

}  // namespace torch_xla_ext
