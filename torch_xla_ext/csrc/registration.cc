#include "torch_xla_ext/csrc/registration.h"

#include <dlfcn.h>
#include <unwind.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "torch_xla_ext/csrc/describe.h"
#include "torch_xla_ext/csrc/text.h"
#include "xla/ffi/api/c_api.h"
#include "xla/service/custom_call_target_registry.h"

namespace torch_xla_ext {
namespace {

// Where the library that has `address` begins.
const void* LibraryOf(const void* address) {
  Dl_info info;
  return dladdr(address, &info) == 0 ? nullptr : info.dli_fbase;
}

// Whether a "Host" target is one of the helpers that XLA:CPU registers for
// itself: functions of its own, of the C library, of libm and of libgcc.
bool IsXlasOwn(const void* function) {
  static const void* const xla = LibraryOf(
      reinterpret_cast<const void*>(&xla::CustomCallTargetRegistry::Global));
  static const void* const libc =
      LibraryOf(reinterpret_cast<const void*>(&std::fputs));
  static const void* const libm = LibraryOf(reinterpret_cast<const void*>(
      static_cast<double (*)(double)>(&std::tan)));
  static const void* const libgcc =
      LibraryOf(reinterpret_cast<const void*>(&_Unwind_Backtrace));
  const void* library = LibraryOf(function);
  return library == xla || library == libc || library == libm ||
         library == libgcc;
}

// Typed targets by platform and name: XLA's own registry can not be read.
using TypedTargets = std::map<std::pair<std::string, std::string>, void*>;

struct Targets {
  // Between a look-up and the registration nobody else may register.
  std::mutex mutex;
  TypedTargets typed;
};

// Made on first use, which may be in a static initialiser, and never destroyed.
Targets& GetTargets() {
  static Targets& targets = *new Targets;
  return targets;
}

const void* Find(const Targets& targets, const std::string& name,
                 const std::string& platform, TargetApi api) {
  if (api == TargetApi::kUntyped) {
    return xla::CustomCallTargetRegistry::Global()->Lookup(name, platform);
  }
  const auto found = targets.typed.find({platform, name});
  return found == targets.typed.end() ? nullptr : found->second;
}

void RegisterHostHandler(const std::string& name, void* handler) {
  const XLA_FFI_Api* ffi = XLA_FFI_GetApi();
  XLA_FFI_Handler_Register_Args args = {};
  args.struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE;
  args.name = {name.data(), name.size()};
  args.platform = {kHostPlatform, sizeof(kHostPlatform) - 1};
  args.bundle.execute = reinterpret_cast<XLA_FFI_Handler*>(handler);
  XLA_FFI_Error* error = ffi->XLA_FFI_Handler_Register(&args);
  if (error == nullptr) return;
  XLA_FFI_Error_GetMessage_Args message = {};
  message.struct_size = XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE;
  message.error = error;
  ffi->XLA_FFI_Error_GetMessage(&message);
  std::string text = message.message;
  XLA_FFI_Error_Destroy_Args destroy = {};
  destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  ffi->XLA_FFI_Error_Destroy(&destroy);
  throw std::runtime_error("XLA refuses the custom-call target " +
                           Quoted(name) + ": " + text);
}

}  // namespace

void CheckPlatform(const std::string& platform) {
  if (platform == kCudaPlatform || platform == kHostPlatform) return;
  throw std::invalid_argument(
      "unknown platform " + Quoted(platform) + "; known are " +
      Joined({Quoted(kCudaPlatform), Quoted(kHostPlatform)}) +
      " (\"Host\" is the CPU)");
}

TargetApi ParseTargetApi(const std::string& api) {
  if (api == "untyped") return TargetApi::kUntyped;
  if (api == "ffi") return TargetApi::kTyped;
  throw std::invalid_argument("unknown api " + Quoted(api) +
                              "; known are \"untyped\" and \"ffi\"");
}

TargetApi ParseTargetApi(int api_version) {
  for (const TargetApi api : {TargetApi::kUntyped, TargetApi::kTyped}) {
    if (api_version == static_cast<int>(api)) return api;
  }
  throw std::invalid_argument(
      "unknown api_version " + std::to_string(api_version) +
      "; known are 0, an untyped function, and 1, a typed FFI handler");
}

void RegisterTarget(const std::string& name, void* function,
                    const std::string& platform, TargetApi api) {
  CheckPlatform(platform);
  if (name.empty()) {
    throw std::invalid_argument("the name of a custom-call target is empty");
  }
  if (function == nullptr) {
    throw std::invalid_argument("custom-call target " + Quoted(name) +
                                ": the function is null");
  }
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  const void* existing = Find(targets, name, platform, api);
  if (existing != nullptr && existing != function) {
    throw std::invalid_argument(
        "custom-call target " + Quoted(name) + " is registered for " +
        Quoted(platform) + " already, with another function: " +
        Describe(existing) + ", not " + Describe(function));
  }
  if (platform == kCudaPlatform && pjrt_bridge::Loaded() != nullptr) {
    pjrt_bridge::RegisterTarget(name, function, api);
  }
  if (existing != nullptr) return;
  if (api == TargetApi::kUntyped) {
    xla::CustomCallTargetRegistry::Global()->Register(name, function, platform);
    return;
  }
  if (platform == kHostPlatform) RegisterHostHandler(name, function);
  targets.typed[{platform, name}] = function;
}

const pjrt_bridge::PluginInfo& LoadPlugin(const std::string& path) {
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  const pjrt_bridge::PluginInfo& info = pjrt_bridge::Load(path);
  for (const auto& [name, function] :
       xla::CustomCallTargetRegistry::Global()->registered_symbols(
           kCudaPlatform)) {
    pjrt_bridge::RegisterTarget(name, function, TargetApi::kUntyped);
  }
  for (const auto& [key, function] : targets.typed) {
    if (key.first != kCudaPlatform) continue;
    pjrt_bridge::RegisterTarget(key.second, function, TargetApi::kTyped);
  }
  return info;
}

bool IsRegistered(const std::string& name, const std::string& platform,
                  TargetApi api) {
  CheckPlatform(platform);
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  return Find(targets, name, platform, api) != nullptr;
}

std::vector<std::string> RegisteredTargets(const std::string& platform,
                                           TargetApi api) {
  CheckPlatform(platform);
  std::vector<std::string> names;
  if (api == TargetApi::kUntyped) {
    for (const auto& [name, function] :
         xla::CustomCallTargetRegistry::Global()->registered_symbols(
             platform)) {
      if (!IsXlasOwn(function)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  for (const auto& [key, function] : targets.typed) {
    if (key.first == platform) names.push_back(key.second);
  }
  return names;
}

}  // namespace torch_xla_ext
