#include "torch_xla_ext/csrc/pjrt_shim/shim.h"

#include <dlfcn.h>

#include <cstddef>
#include <mutex>
#include <sstream>
#include <stdexcept>

#include "torch_xla_ext/csrc/pjrt_shim/compile_options.h"
#include "torch_xla_ext/csrc/pjrt_shim/errors.h"
#include "torch_xla_ext/csrc/pjrt_shim/failed_start.h"
#include "torch_xla_ext/csrc/pjrt_shim/first_execution.h"
#include "torch_xla_ext/csrc/pjrt_shim/profiler.h"
#include "torch_xla_ext/csrc/pjrt_shim/struct_size_shim.h"
#include "torch_xla_ext/csrc/pjrt_shim/targets.h"
#include "torch_xla_ext/csrc/pjrt_shim/topology.h"

namespace torch_xla_ext::pjrt_shim {
namespace {

struct State {
  std::mutex mutex;
  const PluginInfo* info = nullptr;
  const PJRT_Api* shimmed = nullptr;
};

// Never destroyed: XLA may use the plugin until the process ends.
State& GetState() {
  static State& state = *new State;
  return state;
}

constexpr char kRemedy[] =
    "install jax-cuda12-pjrt or jax-cuda13-pjrt 0.6.2 or newer";

[[noreturn]] void Refuse(const std::string& path, const std::string& reason) {
  throw std::runtime_error("the PJRT plugin " + path + " " + reason);
}

const PJRT_Api* LoadApi(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    Refuse(path, std::string("cannot be loaded: ") +
                     (reason == nullptr ? "for an unknown reason" : reason));
  }
  using GetApi = const PJRT_Api* (*)();
  const auto get_api = reinterpret_cast<GetApi>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    Refuse(path, std::string("is not a PJRT plugin: it does not export "
                             "GetPjrtApi; ") +
                     kRemedy);
  }
  const PJRT_Api* api = get_api();
  if (api == nullptr)
    Refuse(path, "provides no API: its GetPjrtApi returns null");
  return api;
}

void CheckVersion(const std::string& path, const PJRT_Api* api) {
  // The size of version 0.70's table: the end of its last function.
  constexpr size_t kNeededSize =
      offsetof(PJRT_Api, PJRT_Client_CreateUninitializedBuffer) +
      sizeof(PJRT_Api::PJRT_Client_CreateUninitializedBuffer);
  const PJRT_Api_Version& version = api->pjrt_api_version;
  std::ostringstream found;
  found << "has PJRT API " << version.major_version << "."
        << version.minor_version << ", but torch_xla 2.8.1 needs "
        << PJRT_API_MAJOR << "." << kOldestMinor << " or newer of "
        << PJRT_API_MAJOR << ".x; " << kRemedy;
  if (version.major_version != PJRT_API_MAJOR ||
      version.minor_version < kOldestMinor) {
    Refuse(path, found.str());
  }
  if (api->struct_size < kNeededSize) {
    found.str("");
    found << "is broken: its table of functions has " << api->struct_size
          << " bytes, but its API version 0." << version.minor_version
          << " has at least " << kNeededSize;
    Refuse(path, found.str());
  }
}

// Options and attributes are arrays of PJRT_NamedValue. A single structure can
// be lengthened, but in an array both sides have to agree on the element size.
void CheckNamedValueSize(const std::string& path, const PJRT_Api* plugin,
                         const PJRT_Api* shimmed) {
  PJRT_Plugin_Attributes_Args args = {};
  args.struct_size = sizeof(args);
  if (PJRT_Error* error = shimmed->PJRT_Plugin_Attributes(&args)) {
    Refuse(path,
           "does not report its attributes: " + TakeErrorText(plugin, error));
  }
  if (args.num_attributes > 0 &&
      args.attributes[0].struct_size != PJRT_NamedValue_STRUCT_SIZE) {
    std::ostringstream reason;
    reason << "is too new: its PJRT_NamedValue has "
           << args.attributes[0].struct_size << " bytes, torch_xla 2.8.1's has "
           << PJRT_NamedValue_STRUCT_SIZE
           << "; install an older jax-cuda12-pjrt or jax-cuda13-pjrt";
    Refuse(path, reason.str());
  }
}

}  // namespace

const PluginInfo& Load(const std::string& path) {
  State& state = GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (state.info != nullptr) {
    if (state.info->path == path) return *state.info;
    Refuse(path, "cannot be used: the process uses " + state.info->path +
                     " already, and can use only one");
  }
  const PJRT_Api* plugin = LoadApi(path);
  CheckVersion(path, plugin);
  if (!TakesTargets(plugin)) {
    Refuse(path,
           std::string("is not for CUDA: it has no custom-call extension, so "
                       "that no kernel can be registered with it; ") +
               kRemedy);
  }
  PJRT_Api* shimmed = ShimmedApi(plugin);
  shimmed->extension_start = WithProfiler(plugin->extension_start);
  MakeTopologyCanonical(shimmed);
  AddCompileOptions(shimmed);
  IsolateFirstExecutions(shimmed);
  ReportFailedStarts(shimmed);
  CheckNamedValueSize(path, plugin, shimmed);
  state.shimmed = shimmed;
  state.info = new PluginInfo{path, plugin->pjrt_api_version.major_version,
                              plugin->pjrt_api_version.minor_version};
  return *state.info;
}

}  // namespace torch_xla_ext::pjrt_shim

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  auto& state = torch_xla_ext::pjrt_shim::GetState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.shimmed;
}
