#include "torch_xla_ext/csrc/registration.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <stdexcept>

#include "torch_xla_ext/csrc/text.h"
#include "xla/service/custom_call_target_registry.h"

namespace torch_xla_ext {
namespace {

// "0x7f…", and the symbol and the library where they are known.
std::string Describe(const void* function) {
  std::ostringstream out;
  out << function;
  Dl_info info;
  if (dladdr(function, &info) != 0) {
    out << " (";
    if (info.dli_sname != nullptr) out << info.dli_sname << " in ";
    out << info.dli_fname << ")";
  }
  return out.str();
}

}  // namespace

void CheckPlatform(const std::string& platform) {
  if (platform == kCudaPlatform || platform == kHostPlatform) return;
  throw std::invalid_argument(
      "unknown platform " + Quoted(platform) + "; known are " +
      Joined({Quoted(kCudaPlatform), Quoted(kHostPlatform)}) +
      " (\"Host\" is the CPU)");
}

void RegisterTarget(const std::string& name, void* function,
                    const std::string& platform) {
  CheckPlatform(platform);
  if (name.empty()) {
    throw std::invalid_argument("the name of a custom-call target is empty");
  }
  if (function == nullptr) {
    throw std::invalid_argument("custom-call target " + Quoted(name) +
                                ": the function is null");
  }
  // Between the look-up and the registration nobody else may register.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  auto* registry = xla::CustomCallTargetRegistry::Global();
  const void* existing = registry->Lookup(name, platform);
  if (existing != nullptr && existing != function) {
    throw std::invalid_argument(
        "custom-call target " + Quoted(name) + " is registered for " +
        Quoted(platform) + " already, with another function: " +
        Describe(existing) + ", not " + Describe(function));
  }
  registry->Register(name, function, platform);
}

std::vector<std::string> RegisteredTargets(const std::string& platform) {
  CheckPlatform(platform);
  std::vector<std::string> names;
  for (const auto& [name, function] :
       xla::CustomCallTargetRegistry::Global()->registered_symbols(platform)) {
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace torch_xla_ext
