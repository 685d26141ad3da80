#include "torch_xla_ext/csrc/registry/registration.h"

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

#include "torch_xla_ext/csrc/registry/builtin_targets.h"
#include "torch_xla_ext/csrc/registry/ffi_checks.h"
#include "torch_xla_ext/csrc/registry/stages.h"
#include "torch_xla_ext/csrc/registry/static_kernels.h"
#include "torch_xla_ext/csrc/registry/text.h"
#include "xla/ffi/api/c_api.h"
#include "xla/service/custom_call_target_registry.h"

namespace torch_xla_ext {
namespace {

// FFI targets by platform and XLA's name for them: XLA's own registry cannot
// be read.
using FfiTargets =
    std::map<std::pair<std::string, std::string>, TargetFunctions>;

// The functions of a name that was registered more than once, in the order of
// registration, and the one that calls run.
struct Generations {
  std::vector<TargetFunctions> functions;
  size_t current;
};
using Renewed =
    std::map<std::tuple<std::string, std::string, TargetApi>, Generations>;

// A type of handlers' states.
struct FfiType {
  std::string name;
  std::string platform;
  XLA_FFI_TypeId* id;
  pjrt_shim::Deleter* deleter;
};

// A client that has its own registry of "CUDA" targets.
struct CudaClient {
  bool made = false;
  const PJRT_Api* plugin = nullptr;  // null if XLA:GPU is in the process
};

struct Targets {
  // Held during a lookup and the registration that depends on it.
  std::mutex mutex;
  FfiTargets ffi;
  std::vector<FfiType> types;
  // The replaced functions by name, platform and API.
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

// The functions that XLA has registered under a name; `execute` is null if
// there are none.
TargetFunctions Find(const Targets& targets, const std::string& hlo_name,
                     const std::string& platform, TargetApi api) {
  TargetFunctions functions;
  if (api == TargetApi::kUntyped) {
    functions.execute =
        xla::CustomCallTargetRegistry::Global()->Lookup(hlo_name, platform);
    return functions;
  }
  const auto found = targets.ffi.find({platform, hlo_name});
  return found == targets.ffi.end() ? functions : found->second;
}

// XLA's name for the function that was registered as `name` after `index` other
// functions.
std::string HloName(const std::string& name, size_t index) {
  return index == 0 ? name : name + "#" + std::to_string(index + 1);
}

std::string CurrentNameOf(const Targets& targets, const std::string& name,
                          const std::string& platform, TargetApi api) {
  const auto found = targets.renewed.find({name, platform, api});
  if (found != targets.renewed.end()) {
    return HloName(name, found->second.current);
  }
  // "name#1" is the function that was registered first, which XLA knows by the
  // plain name.
  const size_t end = name.size() - std::min<size_t>(name.size(), 2);
  return name.compare(end, std::string::npos, "#1") == 0 ? name.substr(0, end)
                                                         : name;
}

[[noreturn]] void ThrowIsXlas(const char* what, const std::string& name) {
  throw std::invalid_argument(
      what + Quoted(name) +
      ": the name belongs to XLA, whose compiler or runtime gives it a special "
      "meaning, so that another call would crash the process; register the "
      "kernel under another name");
}

// Throws std::runtime_error, with `what` and XLA's text, if there is an error.
void ThrowIfRefused(XLA_FFI_Error* error, const std::string& what) {
  if (error == nullptr) return;
  const XLA_FFI_Api* ffi = XLA_FFI_GetApi();
  XLA_FFI_Error_GetMessage_Args message = {};
  message.struct_size = XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE;
  message.error = error;
  ffi->XLA_FFI_Error_GetMessage(&message);
  std::string text = message.message;
  XLA_FFI_Error_Destroy_Args destroy = {};
  destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  ffi->XLA_FFI_Error_Destroy(&destroy);
  throw std::runtime_error("XLA refuses the " + what + ": " + text);
}

void RegisterHandler(const std::string& name, const std::string& platform,
                     const TargetFunctions& functions) {
  AddFfiChecks();
  XLA_FFI_Handler_Register_Args args = {};
  args.struct_size = XLA_FFI_Handler_Register_Args_STRUCT_SIZE;
  args.name = {name.data(), name.size()};
  args.platform = {platform.data(), platform.size()};
  args.bundle = {reinterpret_cast<XLA_FFI_Handler*>(functions.instantiate),
                 reinterpret_cast<XLA_FFI_Handler*>(functions.prepare),
                 reinterpret_cast<XLA_FFI_Handler*>(functions.initialize),
                 reinterpret_cast<XLA_FFI_Handler*>(functions.execute)};
  if (functions.command_buffer_compatible) {
    args.traits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
  }
  ThrowIfRefused(XLA_FFI_GetApi()->XLA_FFI_Handler_Register(&args),
                 "custom-call target " + Quoted(name));
}

void RegisterWithClient(const CudaClient& cuda, const std::string& name,
                        const TargetFunctions& functions, TargetApi api) {
  if (cuda.plugin != nullptr) {
    pjrt_shim::RegisterTarget(
        cuda.plugin, name,
        FunctionsForPlugin(name, functions,
                           pjrt_shim::TakesTraits(cuda.plugin)),
        api);
  } else if (api == TargetApi::kFfi) {
    RegisterHandler(name, kCudaPlatform, functions);
  }
}

void RegisterWithXla(Targets* targets, const std::string& hlo_name,
                     const TargetFunctions& functions,
                     const std::string& platform, TargetApi api) {
  if (platform == kCudaPlatform && targets->cuda.made) {
    RegisterWithClient(targets->cuda, hlo_name, functions, api);
  }
  if (api == TargetApi::kUntyped) {
    xla::CustomCallTargetRegistry::Global()->Register(
        hlo_name, functions.execute, platform);
    return;
  }
  if (platform == kHostPlatform) {
    RegisterHandler(hlo_name, platform, FunctionsForHost(hlo_name, functions));
  }
  targets->ffi[{platform, hlo_name}] = functions;
}

void RegisterTypeWithXla(const FfiType& type) {
  XLA_FFI_TypeId_Register_Args args = {};
  args.struct_size = XLA_FFI_TypeId_Register_Args_STRUCT_SIZE;
  args.name = {type.name.data(), type.name.size()};
  args.type_id = type.id;
  ThrowIfRefused(XLA_FFI_GetApi()->XLA_FFI_TypeId_Register(&args),
                 "FFI type " + Quoted(type.name));
}

void RegisterTypeWithClient(const Targets& targets, const FfiType& type) {
  if (targets.cuda.plugin == nullptr) return RegisterTypeWithXla(type);
  // An id that this process's XLA has assigned may belong to another type in
  // the plugin. XLA:CPU's handlers do not run in a process with a plugin.
  const bool is_xlas = std::any_of(
      targets.types.begin(), targets.types.end(), [&](const FfiType& other) {
        return other.id == type.id && other.platform == kHostPlatform;
      });
  type.id->type_id = pjrt_shim::RegisterType(
      targets.cuda.plugin, type.name, is_xlas ? 0 : type.id->type_id,
      type.deleter == nullptr ? &DeleteState : type.deleter);
  if (type.deleter != nullptr) SetHasDeleter(type.id->type_id);
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

void RegisterTarget(const std::string& name, const TargetFunctions& functions,
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
  if (functions.execute == nullptr) {
    throw std::invalid_argument("custom-call target " + Quoted(name) +
                                ": the function is null");
  }
  if (IsCompilerTarget(name)) ThrowIsXlas("custom-call target ", name);
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  ++targets.num_changes;
  if (api == TargetApi::kFfi) targets.untyped_is_newer.erase({name, platform});
  const TargetFunctions first = Find(targets, name, platform, api);
  if (first.execute == nullptr) {
    RegisterWithXla(&targets, name, functions, platform, api);
    return;
  }
  const std::string before = CurrentNameOf(targets, name, platform, api);
  auto& [registered, current] =
      targets.renewed
          .try_emplace({name, platform, api}, Generations{{first}, 0})
          .first->second;
  const size_t index =
      std::find(registered.begin(), registered.end(), functions) -
      registered.begin();
  if (index == registered.size()) {
    RegisterWithXla(&targets, HloName(name, index), functions, platform, api);
    registered.push_back(functions);
    targets.any_renewed = true;
  }
  if (current == 0 && index != 0 && StaticKernelSchemas().count(name) != 0) {
    std::fprintf(stderr,
                 "torch_xla_ext: custom-call target %s for %s: calls run %s "
                 "from now on, instead of the wheel's own kernel\n",
                 Quoted(name).c_str(), Quoted(platform).c_str(),
                 Described(functions.execute).c_str());
  }
  current = index;
  if (api == TargetApi::kUntyped && HloName(name, index) != before) {
    targets.untyped_is_newer.insert({name, platform});
  }
}

void RegisterTarget(const std::string& name, void* function,
                    const std::string& platform, TargetApi api) {
  TargetFunctions functions;
  functions.execute = function;
  RegisterTarget(name, functions, platform, api);
}

void RegisterFfiType(const std::string& name, XLA_FFI_TypeId* id,
                     pjrt_shim::Deleter* deleter, const std::string& platform) {
  CheckPlatform(platform);
  if (name.empty()) {
    throw std::invalid_argument("the name of an FFI type is empty");
  }
  if (id == nullptr) {
    throw std::invalid_argument("FFI type " + Quoted(name) +
                                ": the address of its id is null");
  }
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  for (const FfiType& type : targets.types) {
    if (type.platform != platform) continue;
    if (type.id == id) return;
    if (type.name == name) {
      throw std::invalid_argument(
          "FFI type " + Quoted(name) + ": another type, whose id is " +
          Described(type.id) + ", is registered under this name for " +
          Quoted(platform) + ", and this one's is " + Described(id) +
          "; register it under another name");
    }
  }
  const FfiType type = {name, platform, id, deleter};
  if (platform == kHostPlatform) {
    RegisterTypeWithXla(type);
  } else if (targets.cuda.made) {
    RegisterTypeWithClient(targets, type);
  }
  targets.types.push_back(type);
}

TargetApi DefaultApi(const std::string& name, const std::string& platform) {
  CheckPlatform(platform);
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  const std::string ffi_name =
      CurrentNameOf(targets, name, platform, TargetApi::kFfi);
  return Find(targets, ffi_name, platform, TargetApi::kFfi).execute !=
                     nullptr &&
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
              api)
      .execute;
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
  if (plugin != nullptr && !pjrt_shim::TakesTargets(plugin)) return;
  for (const auto& [name, function] :
       xla::CustomCallTargetRegistry::Global()->registered_symbols(
           kCudaPlatform)) {
    if (IsBuiltinTarget(name, function)) continue;
    TargetFunctions functions;
    functions.execute = function;
    RegisterWithClient(targets.cuda, name, functions, TargetApi::kUntyped);
  }
  // Handlers of newer versions of XLA's FFI look up their type.
  for (const FfiType& type : targets.types) {
    if (type.platform == kCudaPlatform) RegisterTypeWithClient(targets, type);
  }
  for (const auto& [key, functions] : targets.ffi) {
    if (key.first != kCudaPlatform) continue;
    RegisterWithClient(targets.cuda, key.second, functions, TargetApi::kFfi);
  }
}

const PJRT_Api* ClientPlugin() {
  Targets& targets = GetTargets();
  const std::lock_guard<std::mutex> lock(targets.mutex);
  return targets.cuda.plugin;
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
  for (const auto& [key, functions] : targets.ffi) {
    if (key.first == platform && key.second.find('#') == std::string::npos) {
      names.push_back(key.second);
    }
  }
  return names;
}

}  // namespace torch_xla_ext
