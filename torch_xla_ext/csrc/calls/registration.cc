#include "torch_xla_ext/csrc/calls/registration.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include "torch_xla_ext/csrc/calls/builtin_targets.h"
#include "torch_xla_ext/csrc/calls/static_kernels.h"
#include "torch_xla_ext/csrc/calls/text.h"
#include "xla/ffi/api/c_api.h"
#include "xla/service/custom_call_target_registry.h"

namespace torch_xla_ext {
namespace {

// FFI targets by platform and XLA's name for them: XLA's own registry cannot
// be read.
using FfiTargets = std::map<std::pair<std::string, std::string>, void*>;

// The functions of a name that was registered more than once, in the order of
// registration, and the one that calls run.
struct Generations {
  std::vector<void*> functions;
  size_t current;
};
using Renewed =
    std::map<std::tuple<std::string, std::string, TargetApi>, Generations>;

// A client that does not look "CUDA" targets up in the process's registry.
struct CudaClient {
  bool made = false;
  const PJRT_Api* plugin = nullptr;  // null if XLA:GPU is in the process
};

struct Targets {
  // Held from a lookup to the registration that depends on it.
  std::mutex mutex;
  FfiTargets ffi;
  // By name, platform and API.
  Renewed renewed;
  // Whether `renewed` has entries: a traced call checks this first.
  std::atomic<bool> any_renewed{false};
  // Names and platforms whose untyped function replaced another one after the
  // FFI one was registered: the FFI function is not its counterpart.
  std::set<std::pair<std::string, std::string>> untyped_is_newer;
  std::atomic<uint64_t> num_changes{0};
  CudaClient cuda;
};

// Made on first use, which may be in a static initialiser, and never destroyed.
Targets& GetTargets() {
  static Targets& targets = *new Targets;
  return targets;
}

// The function that XLA has registered under a name.
void* Find(const Targets& targets, const std::string& hlo_name,
           const std::string& platform, TargetApi api) {
  if (api == TargetApi::kUntyped) {
    return xla::CustomCallTargetRegistry::Global()->Lookup(hlo_name, platform);
  }
  const auto found = targets.ffi.find({platform, hlo_name});
  return found == targets.ffi.end() ? nullptr : found->second;
}

// XLA's name for the function that was registered as `name` after `index`
// others.
std::string HloName(const std::string& name, size_t index) {
  return index == 0 ? name : name + "#" + std::to_string(index + 1);
}

std::string CurrentNameOf(const Targets& targets, const std::string& name,
                          const std::string& platform, TargetApi api) {
  const auto found = targets.renewed.find({name, platform, api});
  if (found != targets.renewed.end()) {
    return HloName(name, found->second.current);
  }
  // "name#1" is the first, which XLA knows by the plain name.
  const size_t end = name.size() - std::min<size_t>(name.size(), 2);
  return name.compare(end, std::string::npos, "#1") == 0 ? name.substr(0, end)
                                                         : name;
}

[[noreturn]] void ThrowIsXlas(const char* what, const std::string& name) {
  throw std::invalid_argument(
      what + Quoted(name) +
      ": the name belongs to XLA, whose compiler or runtime gives it a meaning "
      "of its own, so that another call would end the process; register the "
      "kernel under another name");
}

void RegisterHandler(const std::string& name, const std::string& platform,
                     void* handler) {
  const XLA_FFI_Api* ffi = XLA_FFI_GetApi();
  XLA_FFI_Handler_Register_Args args = {};
  args.struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE;
  args.name = {name.data(), name.size()};
  args.platform = {platform.data(), platform.size()};
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

void RegisterWithClient(const CudaClient& cuda, const std::string& name,
                        void* function, TargetApi api) {
  if (cuda.plugin != nullptr) {
    pjrt_bridge::RegisterTarget(cuda.plugin, name, function, api);
  } else if (api == TargetApi::kFfi) {
    RegisterHandler(name, kCudaPlatform, function);
  }
}

void RegisterWithXla(Targets* targets, const std::string& hlo_name,
                     void* function, const std::string& platform,
                     TargetApi api) {
  if (platform == kCudaPlatform && targets->cuda.made) {
    RegisterWithClient(targets->cuda, hlo_name, function, api);
  }
  if (api == TargetApi::kUntyped) {
    xla::CustomCallTargetRegistry::Global()->Register(hlo_name, function,
                                                      platform);
    return;
  }
  if (platform == kHostPlatform) RegisterHandler(hlo_name, platform, function);
  targets->ffi[{platform, hlo_name}] = function;
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
  if (api == "ffi") return TargetApi::kFfi;
  throw std::invalid_argument("unknown api " + Quoted(api) +
                              "; known are \"untyped\" and \"ffi\"");
}

TargetApi ParseTargetApi(int api_version) {
  for (const TargetApi api : {TargetApi::kUntyped, TargetApi::kFfi}) {
    if (api_version == static_cast<int>(api)) return api;
  }
  throw std::invalid_argument(
      "unknown api_version " + std::to_string(api_version) +
      "; known are 0, an untyped function, and 1, an FFI handler");
}

void RegisterTarget(const std::string& name, void* function,
                    const std::string& platform, TargetApi api) {
  CheckPlatform(platform);
  if (name.empty()) {
    throw std::invalid_argument("the name of a custom-call target is empty");
  }
  if (name.find('#') != std::string::npos) {
    throw std::invalid_argument(
        "custom-call target " + Quoted(name) +
        ": a name must not contain '#', which distinguishes functions that are "
        "registered under the same name");
  }
  if (function == nullptr) {
    throw std::invalid_argument("custom-call target " + Quoted(name) +
                                ": the function is null");
  }
  if (IsCompilerTarget(name)) ThrowIsXlas("custom-call target ", name);
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  ++targets.num_changes;
  if (api == TargetApi::kFfi) targets.untyped_is_newer.erase({name, platform});
  void* const first = Find(targets, name, platform, api);
  if (first == nullptr) {
    RegisterWithXla(&targets, name, function, platform, api);
    return;
  }
  const std::string before = CurrentNameOf(targets, name, platform, api);
  auto& [functions, current] =
      targets.renewed
          .try_emplace({name, platform, api}, Generations{{first}, 0})
          .first->second;
  const size_t index = std::find(functions.begin(), functions.end(), function) -
                       functions.begin();
  if (index == functions.size()) {
    RegisterWithXla(&targets, HloName(name, index), function, platform, api);
    functions.push_back(function);
    targets.any_renewed = true;
  }
  if (current == 0 && index != 0 && StaticKernelSchemas().count(name) != 0) {
    std::fprintf(stderr,
                 "torch_xla_ext: custom-call target %s for %s: calls run %s "
                 "from now on, instead of the wheel's own kernel\n",
                 Quoted(name).c_str(), Quoted(platform).c_str(),
                 Described(function).c_str());
  }
  current = index;
  if (api == TargetApi::kUntyped && HloName(name, index) != before) {
    targets.untyped_is_newer.insert({name, platform});
  }
}

TargetApi DefaultApi(const std::string& name, const std::string& platform) {
  CheckPlatform(platform);
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  const std::string ffi_name =
      CurrentNameOf(targets, name, platform, TargetApi::kFfi);
  return Find(targets, ffi_name, platform, TargetApi::kFfi) != nullptr &&
                 targets.untyped_is_newer.count({name, platform}) == 0
             ? TargetApi::kFfi
             : TargetApi::kUntyped;
}

uint64_t NumRegistrations() { return GetTargets().num_changes; }

std::string CurrentName(const std::string& name, const std::string& platform,
                        TargetApi api) {
  Targets& targets = GetTargets();
  if (!targets.any_renewed) return name;
  const std::lock_guard<std::mutex> lock(targets.mutex);
  return CurrentNameOf(targets, name, platform, api);
}

void* CurrentFunction(const std::string& name, const std::string& platform,
                      TargetApi api) {
  CheckPlatform(platform);
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  return Find(targets, CurrentNameOf(targets, name, platform, api), platform,
              api);
}

void CheckIsNotXlas(const std::string& name, const std::string& platform,
                    TargetApi api) {
  const bool is_untyped = api == TargetApi::kUntyped;
  void* const function =
      is_untyped ? CurrentFunction(name, platform, api) : nullptr;
  if (IsCompilerTarget(name) ||
      (function != nullptr && IsBuiltinTarget(name, function))) {
    ThrowIsXlas("custom call ", name);
  }
}

const char* CurrentPlatform() {
  const char* device = std::getenv("PJRT_DEVICE");
  const bool cuda =
      device != nullptr && std::string_view(device) == kCudaPlatform;
  return cuda ? kCudaPlatform : kHostPlatform;
}

void ForwardTargets(const std::string& device_type, const PJRT_Api* plugin) {
  if (device_type != kCudaPlatform) return;
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  targets.cuda = {true, plugin};
  if (plugin != nullptr && !pjrt_bridge::TakesTargets(plugin)) return;
  for (const auto& [name, function] :
       xla::CustomCallTargetRegistry::Global()->registered_symbols(
           kCudaPlatform)) {
    if (IsBuiltinTarget(name, function)) continue;
    RegisterWithClient(targets.cuda, name, function, TargetApi::kUntyped);
  }
  for (const auto& [key, function] : targets.ffi) {
    if (key.first != kCudaPlatform) continue;
    RegisterWithClient(targets.cuda, key.second, function, TargetApi::kFfi);
  }
}

std::vector<std::string> RegisteredTargets(const std::string& platform,
                                           TargetApi api) {
  CheckPlatform(platform);
  std::vector<std::string> names;
  if (api == TargetApi::kUntyped) {
    for (const auto& [name, function] :
         xla::CustomCallTargetRegistry::Global()->registered_symbols(
             platform)) {
      // "name#2" is a function of the target `name`.
      if (name.find('#') == std::string::npos &&
          !IsBuiltinTarget(name, function)) {
        names.push_back(name);
      }
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  for (const auto& [key, function] : targets.ffi) {
    if (key.first == platform && key.second.find('#') == std::string::npos) {
      names.push_back(key.second);
    }
  }
  return names;
}

}  // namespace torch_xla_ext
