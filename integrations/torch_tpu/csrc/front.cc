#include "integrations/torch_tpu/csrc/front.h"

#include <dlfcn.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/pjrt_shim/errors.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace torch_xla_gpu {
namespace {

using torch_xla_ext::pjrt_shim::TakeErrorText;

// The members of PJRT_FFI_Extension, and of its function that registers a
// handler, in PJRT 0.114 and 0.115. No Python package has headers with them:
// those of 0.72 lack the function, and later ones had an `api_version` among
// its arguments, which the plugins no longer have.
struct RegisterHandlerArgs {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  void* handler;
  const char* platform_name;
  size_t platform_name_size;
  int traits;
};
struct FfiExtension {
  PJRT_Extension_Base base;
  void* type_id_register;
  void* user_data_add;
  PJRT_Error* (*register_handler)(RegisterHandlerArgs* args);
};

// The extension that describes a TPU's topology, of which torch-tpu asks for
// the number of chips when it calls a kernel. All its functions that return a
// single number count processes, chips, cores or devices: here, there is one of
// each. No Python package has headers with it.
constexpr int kTopologyExtensionType = 16;
constexpr int kNumTopologyFunctions = 30;
constexpr int kFirstCount = 7, kLastCount = 15;
struct CountArgs {
  size_t struct_size;
  const PJRT_TopologyDescription* topology;
  int32_t count;  // out
};
using TopologyFunction = PJRT_Error*(CountArgs* args);
struct TopologyExtension {
  PJRT_Extension_Base base;
  TopologyFunction* functions[kNumTopologyFunctions];
};

// The plugin refuses argument structures that are shorter than its own; a
// longer one, of zeros, is allowed.
template <typename Args>
struct Padded {
  Args args = {};
  char zeros[512] = {};
  Padded() { args.struct_size = sizeof(*this); }
};

// The options of the client, and what they point to.
struct Options {
  std::deque<std::string> texts;
  std::deque<std::vector<int64_t>> lists;
  std::vector<PJRT_NamedValue> values;
};

struct State {
  std::mutex mutex;
  std::string path;
  const PJRT_Api* plugin = nullptr;
  PJRT_Api* api = nullptr;  // what torch-tpu receives
  Options options;
  PJRT_Client* client = nullptr;  // until torch-tpu has got it
};

// Never destroyed: XLA may use the plugin until the process ends.
State& GetState() {
  static State& state = *new State;
  return state;
}

void SetOptions(const Option* options, size_t size, Options* result) {
  *result = Options();
  for (size_t i = 0; i < size; ++i) {
    const Option& option = options[i];
    PJRT_NamedValue value = {};
    value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    const std::string& name = result->texts.emplace_back(option.name);
    value.name = name.data();
    value.name_size = name.size();
    value.type = static_cast<PJRT_NamedValue_Type>(option.type);
    value.value_size = 1;
    switch (value.type) {
      case PJRT_NamedValue_kString: {
        const std::string& text = result->texts.emplace_back(option.string);
        value.string_value = text.data();
        value.value_size = text.size();
        break;
      }
      case PJRT_NamedValue_kInt64:
        value.int64_value = option.integers[0];
        break;
      case PJRT_NamedValue_kInt64List: {
        const std::vector<int64_t>& list = result->lists.emplace_back(
            option.integers, option.integers + option.size);
        value.int64_array_value = list.data();
        value.value_size = list.size();
        break;
      }
      case PJRT_NamedValue_kFloat:
        value.float_value = option.real;
        break;
      case PJRT_NamedValue_kBool:
        value.bool_value = option.boolean;
        break;
    }
    result->values.push_back(value);
  }
}

// The plugin's PJRT_Client_Create with our options in place of the caller's,
// which are a TPU's.
PJRT_Error* CreateWithOptions(const State& state,
                              PJRT_Client_Create_Args* args) {
  const PJRT_NamedValue* given = args->create_options;
  const size_t num_given = args->num_options;
  args->create_options = state.options.values.data();
  args->num_options = state.options.values.size();
  PJRT_Error* error = state.plugin->PJRT_Client_Create(args);
  args->create_options = given;
  args->num_options = num_given;
  return error;
}

PJRT_Error* CreateClient(PJRT_Client_Create_Args* args) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.client == nullptr) return CreateWithOptions(state, args);
  args->client = std::exchange(state.client, nullptr);
  return nullptr;
}

PJRT_Error* CountOne(CountArgs* args) {
  args->count = 1;
  return nullptr;
}

// An error object of the plugin, which only the plugin can make: from a call of
// its own function with arguments of size 0.
PJRT_Error* NoSuchTopology(CountArgs*) {
  PJRT_Plugin_Attributes_Args nothing = {};
  return GetState().plugin->PJRT_Plugin_Attributes(&nothing);
}

void AddTopology(PJRT_Api* api) {
  static TopologyExtension& extension = *new TopologyExtension;
  extension.base.struct_size = sizeof(extension);
  extension.base.type =
      static_cast<PJRT_Extension_Type>(kTopologyExtensionType);
  extension.base.next = api->extension_start;
  for (int i = 0; i < kNumTopologyFunctions; ++i) {
    const bool is_count = i >= kFirstCount && i <= kLastCount;
    extension.functions[i] = is_count ? CountOne : NoSuchTopology;
  }
  api->extension_start = &extension.base;
}

std::string CheckVersion(const PJRT_Api* api) {
  const PJRT_Api_Version& version = api->pjrt_api_version;
  if (version.major_version == PJRT_API_MAJOR &&
      version.minor_version >= kOldestMinor) {
    return "";
  }
  std::ostringstream text;
  text << "has PJRT API " << version.major_version << "."
       << version.minor_version << ", but torch-tpu 0.2.0 needs "
       << PJRT_API_MAJOR << "." << kOldestMinor << " or newer of "
       << PJRT_API_MAJOR
       << ".x; install jax-cuda13-pjrt, jax-cuda12-pjrt or "
          "lammps-jax-pjrt-cpu 0.11.2";
  return text.str();
}

// The problem of the plugin, or "".
std::string Load(State& state, const std::string& path) {
  if (state.plugin != nullptr) {
    return state.path == path
               ? ""
               : "cannot be used: the process uses " + state.path +
                     " already, and can use only one";
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return std::string("cannot be loaded: ") +
           (reason == nullptr ? "for an unknown reason" : reason);
  }
  using GetApi = const PJRT_Api* (*)();
  const auto get_api = reinterpret_cast<GetApi>(dlsym(library, "GetPjrtApi"));
  const PJRT_Api* plugin = get_api == nullptr ? nullptr : get_api();
  if (plugin == nullptr) {
    return "is not a PJRT plugin: it has no API (GetPjrtApi)";
  }
  if (std::string wrong = CheckVersion(plugin); !wrong.empty()) return wrong;
  // A copy of the whole table, which is longer than that of our headers.
  void* copy = ::operator new(plugin->struct_size);
  std::memcpy(copy, plugin, plugin->struct_size);
  state.api = static_cast<PJRT_Api*>(copy);
  state.api->PJRT_Client_Create = CreateClient;
  AddTopology(state.api);
  state.plugin = plugin;
  state.path = path;
  return "";
}

const FfiExtension* FindFfi(const PJRT_Api* plugin) {
  for (const PJRT_Extension_Base* extension = plugin->extension_start;
       extension != nullptr; extension = extension->next) {
    if (extension->type == PJRT_Extension_Type_FFI &&
        extension->struct_size >= sizeof(FfiExtension)) {
      return reinterpret_cast<const FfiExtension*>(extension);
    }
  }
  return nullptr;
}

}  // namespace

const char* Failed(std::string text) {
  static thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

}  // namespace torch_xla_gpu

using torch_xla_gpu::GetState, torch_xla_gpu::Failed, torch_xla_gpu::State;

EXPORT const char* TorchXlaGpuLoad(const char* path) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const std::string wrong = torch_xla_gpu::Load(state, path);
  if (wrong.empty()) return nullptr;
  return Failed(std::string("the PJRT plugin ") + path + " " + wrong);
}

EXPORT const char* TorchXlaGpuCreateClient(const torch_xla_gpu::Option* options,
                                           size_t size) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.plugin == nullptr) return Failed("no PJRT plugin is loaded");
  SetOptions(options, size, &state.options);
  torch_xla_gpu::Padded<PJRT_Client_Create_Args> args;
  PJRT_Error* error = CreateWithOptions(state, &args.args);
  if (error != nullptr) {
    return Failed(torch_xla_gpu::TakeErrorText(state.plugin, error));
  }
  state.client = args.args.client;
  return nullptr;
}

EXPORT const char* TorchXlaGpuRegisterHandler(const char* name,
                                              const char* platform,
                                              void* handler) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.plugin == nullptr) return Failed("no PJRT plugin is loaded");
  const torch_xla_gpu::FfiExtension* ffi = torch_xla_gpu::FindFfi(state.plugin);
  if (ffi == nullptr) {
    return Failed("the PJRT plugin " + state.path +
                  " has no extension for XLA's FFI, so that no kernel can be "
                  "registered with it");
  }
  torch_xla_gpu::RegisterHandlerArgs args = {};
  args.struct_size = offsetof(torch_xla_gpu::RegisterHandlerArgs, traits) +
                     sizeof(args.traits);
  args.target_name = name;
  args.target_name_size = std::strlen(name);
  args.handler = handler;
  args.platform_name = platform;
  args.platform_name_size = std::strlen(platform);
  if (PJRT_Error* error = ffi->register_handler(&args)) {
    return Failed(torch_xla_gpu::TakeErrorText(state.plugin, error));
  }
  return nullptr;
}

EXPORT void TorchXlaGpuApiVersion(int32_t* major, int32_t* minor) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  *major = state.plugin ? state.plugin->pjrt_api_version.major_version : 0;
  *minor = state.plugin ? state.plugin->pjrt_api_version.minor_version : 0;
}

EXPORT const PJRT_Api* GetPjrtApi() {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.api;
}
