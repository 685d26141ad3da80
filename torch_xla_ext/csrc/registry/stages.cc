#include "torch_xla_ext/csrc/registry/stages.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "torch_xla_ext/csrc/registry/ffi_checks.h"
#include "torch_xla_ext/csrc/registry/text.h"
#include "xla/ffi/api/c_api.h"

namespace torch_xla_ext {
namespace {

XLA_FFI_Handler* AsHandler(void* function) {
  return reinterpret_cast<XLA_FFI_Handler*>(function);
}

// The metadata that a frame asks for; null if the frame is a call.
XLA_FFI_Metadata* RequestedMetadata(const XLA_FFI_CallFrame* frame) {
  const XLA_FFI_Extension_Base* extension = frame->extension_start;
  return extension != nullptr && extension->type == XLA_FFI_Extension_Metadata
             ? reinterpret_cast<const XLA_FFI_Metadata_Extension*>(extension)
                   ->metadata
             : nullptr;
}

// Whether a handler was compiled with the headers of XLA FFI 0.1.
bool IsOfFirstVersion(void* handler) {
  struct {
    XLA_FFI_Metadata metadata;
    char members_of_newer_versions[64];
  } result = {};
  result.metadata.struct_size = sizeof(result);
  result.metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &result.metadata;
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = XLA_FFI_GetApi();
  XLA_FFI_Error* error = AsHandler(handler)(&frame);
  if (error != nullptr) {  // newer than 0.1: its type is not registered
    XLA_FFI_Error_Destroy_Args args = {};
    args.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
    args.error = error;
    frame.api->XLA_FFI_Error_Destroy(&args);
    return false;
  }
  const XLA_FFI_Api_Version& version = result.metadata.api_version;
  return version.major_version == 0 && version.minor_version == 1;
}

// The states that handlers of version 0.1 have set in a newer plugin, and their
// deleters.
struct States {
  std::mutex mutex;
  std::map<void*, void (*)(void*)> deleters;
  std::set<int64_t> types_with_deleter;
};

States& GetStates() {
  static States& states = *new States;
  return states;
}

// The plugin's functions, during a call of a handler of version 0.1.
thread_local const XLA_FFI_Api* plugin_api = nullptr;

// The arguments of XLA_FFI_State_Set in version 0.2. Newer versions recognize
// them by their size, until 2027-02-15.
struct SetArgsOfVersion2 {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_TypeId* type_id;
  void* state;
};

// The arguments of XLA_FFI_State_Set and XLA_FFI_State_Get since version 0.3,
// where each stage may have a state.
struct StateArgs {
  size_t struct_size;
  XLA_FFI_Extension_Base* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_TypeId* type_id;
  void* state;
};

bool HasStatesByStage(const XLA_FFI_Api& api) {
  return api.api_version.major_version > 0 ||
         api.api_version.minor_version >= 3;
}

XLA_FFI_Error* SetStateInPlugin(const XLA_FFI_State_Set_Args& args) {
  if (HasStatesByStage(*plugin_api)) {
    StateArgs newer = {sizeof(newer), nullptr,
                       args.ctx,      XLA_FFI_ExecutionStage_INSTANTIATE,
                       args.type_id,  args.state};
    return plugin_api->XLA_FFI_State_Set(
        reinterpret_cast<XLA_FFI_State_Set_Args*>(&newer));
  }
  SetArgsOfVersion2 newer = {sizeof(newer), nullptr, args.ctx, args.type_id,
                             args.state};
  return plugin_api->XLA_FFI_State_Set(
      reinterpret_cast<XLA_FFI_State_Set_Args*>(&newer));
}

// XLA_FFI_State_Get with the arguments of version 0.1, or of a newer version if
// the handler was compiled with different headers from `instantiate`.
XLA_FFI_Error* GetState(XLA_FFI_State_Get_Args* args) {
  if (args->struct_size != XLA_FFI_State_Get_Args_STRUCT_SIZE) {
    return plugin_api->XLA_FFI_State_Get(args);
  }
  StateArgs newer = {sizeof(newer), nullptr,
                     args->ctx,     XLA_FFI_ExecutionStage_INSTANTIATE,
                     args->type_id, nullptr};
  XLA_FFI_Error* error = plugin_api->XLA_FFI_State_Get(
      reinterpret_cast<XLA_FFI_State_Get_Args*>(&newer));
  args->state = newer.state;
  return error;
}

// XLA_FFI_State_Set with the arguments of version 0.1.
XLA_FFI_Error* SetState(XLA_FFI_State_Set_Args* args) {
  States& states = GetStates();
  {
    const std::lock_guard<std::mutex> lock(states.mutex);
    if (states.types_with_deleter.count(args->type_id->type_id) == 0) {
      states.deleters[args->state] = args->deleter;
    }
  }
  XLA_FFI_Error* error = SetStateInPlugin(*args);
  if (error != nullptr) {
    {
      const std::lock_guard<std::mutex> lock(states.mutex);
      states.deleters.erase(args->state);
    }
    args->deleter(args->state);  // not shared with other handlers
  }
  return error;
}

// A plugin's functions, as a handler of version 0.1 may call them in
// `instantiate`, which sets the state, or in another stage, which reads it.
// They are never freed, because an asynchronous handler calls them later.
const XLA_FFI_Api* FunctionsOfFirstVersion(const XLA_FFI_Api* plugin,
                                           bool instantiates) {
  static std::mutex& mutex = *new std::mutex;
  static auto& made =
      *new std::map<std::pair<const XLA_FFI_Api*, bool>, XLA_FFI_Api*>;
  const std::lock_guard<std::mutex> lock(mutex);
  XLA_FFI_Api*& api = made[{plugin, instantiates}];
  if (api == nullptr) {
    // The copy also has the functions of newer versions.
    char* memory = new char[std::max(sizeof(*api), plugin->struct_size)]();
    std::memcpy(memory, plugin, plugin->struct_size);
    api = reinterpret_cast<XLA_FFI_Api*>(memory);
    if (instantiates) {
      api->XLA_FFI_State_Set = SetState;
    } else if (HasStatesByStage(*plugin)) {
      api->XLA_FFI_State_Get = GetState;
    }
  }
  return api;
}

// Calls a handler of version 0.1 for a plugin of a newer one.
XLA_FFI_Error* CallInPlugin(XLA_FFI_Handler* handler,
                            XLA_FFI_CallFrame* frame) {
  if (RequestedMetadata(frame) != nullptr ||
      frame->api->api_version.minor_version < 2) {
    return handler(frame);
  }
  const bool instantiates = frame->stage == XLA_FFI_ExecutionStage_INSTANTIATE;
  XLA_FFI_CallFrame call = *frame;
  call.api = FunctionsOfFirstVersion(frame->api, instantiates);
  if (instantiates) {
    call.args.size = 0;
    call.rets.size = 0;
  }
  plugin_api = frame->api;
  XLA_FFI_Error* error = handler(&call);
  frame->future = call.future;
  return error;
}

// Calls the handler of a stage before `execute`, if there is one.
XLA_FFI_Error* CallBefore(void* handler, XLA_FFI_ExecutionStage stage,
                          const XLA_FFI_CallFrame* frame) {
  if (handler == nullptr) return nullptr;
  XLA_FFI_CallFrame call = *frame;
  call.stage = stage;
  call.future = nullptr;
  XLA_FFI_Error* error = AsHandler(handler)(&call);
  if (error != nullptr || call.future == nullptr) return error;
  return MakeFfiError(frame->api,
                      "a handler of the stages prepare and initialize must not "
                      "return a future on the CPU",
                      XLA_FFI_Error_Code_UNIMPLEMENTED);
}

// The handlers that are called by this file's functions. Each is written once,
// before XLA receives its function.
std::array<TargetFunctions, kMaxAdaptedTargets> adapted = {};

// Calls a handler of one of `adapted` for a plugin.
template <size_t number, void* TargetFunctions::* stage>
XLA_FFI_Error* InPlugin(XLA_FFI_CallFrame* frame) {
  return CallInPlugin(AsHandler(adapted[number].*stage), frame);
}

template <size_t number>
XLA_FFI_Error* Execute(XLA_FFI_CallFrame* frame) {
  const TargetFunctions& functions = adapted[number];
  XLA_FFI_Handler* execute = AsHandler(functions.execute);
  if (XLA_FFI_Metadata* metadata = RequestedMetadata(frame)) {
    XLA_FFI_Error* error = execute(frame);
    if (functions.command_buffer_compatible) {
      metadata->traits |= XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
    }
    return error;
  }
  XLA_FFI_Error* error =
      CallBefore(functions.prepare, XLA_FFI_ExecutionStage_PREPARE, frame);
  if (error == nullptr) {
    error = CallBefore(functions.initialize, XLA_FFI_ExecutionStage_INITIALIZE,
                       frame);
  }
  return error == nullptr ? execute(frame) : error;
}

struct Entries {
  XLA_FFI_Handler* execute;  // for XLA:CPU: calls prepare and initialize first
  // The stages of a handler of version 0.1 in a newer plugin.
  XLA_FFI_Handler* instantiate_in_plugin;
  XLA_FFI_Handler* prepare_in_plugin;
  XLA_FFI_Handler* initialize_in_plugin;
  XLA_FFI_Handler* execute_in_plugin;
};

template <size_t... numbers>
constexpr std::array<Entries, sizeof...(numbers)> MakeEntries(
    std::index_sequence<numbers...>) {
  return {Entries{&Execute<numbers>,
                  &InPlugin<numbers, &TargetFunctions::instantiate>,
                  &InPlugin<numbers, &TargetFunctions::prepare>,
                  &InPlugin<numbers, &TargetFunctions::initialize>,
                  &InPlugin<numbers, &TargetFunctions::execute>}...};
}

constexpr auto kEntries =
    MakeEntries(std::make_index_sequence<kMaxAdaptedTargets>());

// The functions that call `functions`; equal ones share them.
const Entries& EntriesFor(const std::string& name,
                          const TargetFunctions& functions) {
  static std::mutex& mutex = *new std::mutex;
  static size_t num_adapted = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  const size_t number =
      std::find(adapted.begin(), adapted.begin() + num_adapted, functions) -
      adapted.begin();
  if (number == kMaxAdaptedTargets) {
    throw std::runtime_error(
        "custom-call target " + Quoted(name) + ": this process has " +
        std::to_string(kMaxAdaptedTargets) +
        " targets with several stages already, which is the limit");
  }
  if (number == num_adapted) adapted[num_adapted++] = functions;
  return kEntries[number];
}

}  // namespace

TargetFunctions FunctionsForHost(const std::string& name,
                                 const TargetFunctions& functions) {
  TargetFunctions result = functions;
  result.record = nullptr;  // XLA:CPU has no command buffers
  if (functions.prepare == nullptr && functions.initialize == nullptr) {
    return result;
  }
  result.execute = reinterpret_cast<void*>(EntriesFor(name, functions).execute);
  result.prepare = nullptr;
  result.initialize = nullptr;
  return result;
}

TargetFunctions FunctionsForPlugin(const std::string& name,
                                   const TargetFunctions& functions,
                                   bool takes_traits) {
  TargetFunctions result = functions;
  if (functions.instantiate != nullptr &&
      IsOfFirstVersion(functions.instantiate)) {
    const Entries& entries = EntriesFor(name, functions);
    const auto replace = [](void** stage, XLA_FFI_Handler* entry) {
      if (*stage != nullptr) *stage = reinterpret_cast<void*>(entry);
    };
    replace(&result.instantiate, entries.instantiate_in_plugin);
    replace(&result.prepare, entries.prepare_in_plugin);
    replace(&result.initialize, entries.initialize_in_plugin);
    replace(&result.execute, entries.execute_in_plugin);
  }
  if (functions.command_buffer_compatible && !takes_traits) {
    // The plugin itself calls the earlier stages.
    TargetFunctions execute;
    execute.execute = result.execute;
    execute.command_buffer_compatible = true;
    result.execute = reinterpret_cast<void*>(EntriesFor(name, execute).execute);
  }
  return result;
}

void DeleteState(void* state) {
  States& states = GetStates();
  void (*deleter)(void*) = nullptr;
  {
    const std::lock_guard<std::mutex> lock(states.mutex);
    const auto found = states.deleters.find(state);
    if (found == states.deleters.end()) return;
    deleter = found->second;
    states.deleters.erase(found);
  }
  deleter(state);
}

void SetHasDeleter(int64_t type_id) {
  States& states = GetStates();
  const std::lock_guard<std::mutex> lock(states.mutex);
  states.types_with_deleter.insert(type_id);
}

}  // namespace torch_xla_ext
