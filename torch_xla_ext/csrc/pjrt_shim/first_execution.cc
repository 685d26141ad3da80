#include "torch_xla_ext/csrc/pjrt_shim/first_execution.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>

#include "torch_xla_ext/csrc/pjrt_shim/errors.h"

namespace torch_xla_ext::pjrt_shim {
namespace {

// After this time, a program has surely finished loading. The limit also
// prevents a deadlock if the program waits for a thread that is locked out.
constexpr std::chrono::seconds kLongestWait{10};

struct Isolation {
  // Held in shared mode by functions that give work to the device.
  std::shared_mutex device;
  std::mutex mutex;
  std::set<std::string> targets;  // passed to RunFirstAlone
  std::unordered_set<PJRT_LoadedExecutable*> not_yet_run;
  // The original functions of `api` that are called here.
  PJRT_Client_Compile* compile = nullptr;
  PJRT_Executable_DeserializeAndLoad* load = nullptr;
  PJRT_LoadedExecutable_Destroy* destroy = nullptr;
  PJRT_LoadedExecutable_Execute* execute = nullptr;
  const PJRT_Api* api = nullptr;
};

// Never destroyed: XLA may use the plugin until the process ends.
Isolation& GetIsolation() {
  static Isolation& isolation = *new Isolation;
  return isolation;
}

void Ignore(PJRT_Error* error) {
  if (error != nullptr) DestroyError(GetIsolation().api, error);
}

void WaitFor(PJRT_Buffer* buffer,
             std::chrono::steady_clock::time_point deadline) {
  const PJRT_Api* api = GetIsolation().api;
  PJRT_Buffer_ReadyEvent_Args ready = {};
  ready.struct_size = PJRT_Buffer_ReadyEvent_Args_STRUCT_SIZE;
  ready.buffer = buffer;
  if (PJRT_Error* error = api->PJRT_Buffer_ReadyEvent(&ready)) {
    return Ignore(error);  // deleted: executing the program reports it
  }
  while (std::chrono::steady_clock::now() < deadline) {
    PJRT_Event_IsReady_Args state = {};
    state.struct_size = PJRT_Event_IsReady_Args_STRUCT_SIZE;
    state.event = ready.event;
    PJRT_Error* error = api->PJRT_Event_IsReady(&state);
    Ignore(error);
    if (error != nullptr || state.is_ready) break;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  PJRT_Event_Destroy_Args destroy = {};
  destroy.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE;
  destroy.event = ready.event;
  Ignore(api->PJRT_Event_Destroy(&destroy));
}

size_t NumOutputs(PJRT_LoadedExecutable* loaded) {
  const PJRT_Api* api = GetIsolation().api;
  PJRT_LoadedExecutable_GetExecutable_Args get = {};
  get.struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE;
  get.loaded_executable = loaded;
  if (PJRT_Error* error = api->PJRT_LoadedExecutable_GetExecutable(&get)) {
    Ignore(error);
    return 0;
  }
  PJRT_Executable_NumOutputs_Args outputs = {};
  outputs.struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE;
  outputs.executable = get.executable;
  Ignore(api->PJRT_Executable_NumOutputs(&outputs));
  PJRT_Executable_Destroy_Args destroy = {};
  destroy.struct_size = PJRT_Executable_Destroy_Args_STRUCT_SIZE;
  destroy.executable = get.executable;
  Ignore(api->PJRT_Executable_Destroy(&destroy));
  return outputs.num_outputs;
}

PJRT_Error* ExecuteAlone(PJRT_LoadedExecutable_Execute_Args* args) {
  const std::unique_lock<std::shared_mutex> lock(GetIsolation().device);
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  for (size_t device = 0; device < args->num_devices; ++device) {
    for (size_t i = 0; i < args->num_args; ++i) {
      WaitFor(args->argument_lists[device][i], deadline);
    }
  }
  if (PJRT_Error* error = GetIsolation().execute(args)) return error;
  if (args->output_lists == nullptr || NumOutputs(args->executable) == 0) {
    return nullptr;
  }
  // A program's outputs are ready together.
  for (size_t device = 0; device < args->num_devices; ++device) {
    WaitFor(args->output_lists[device][0], deadline);
  }
  return nullptr;
}

PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  Isolation& state = GetIsolation();
  bool is_first = false;
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    is_first = state.not_yet_run.erase(args->executable) > 0;
  }
  if (is_first) return ExecuteAlone(args);
  const std::shared_lock<std::shared_mutex> lock(state.device);
  return state.execute(args);
}

void WillRunAlone(PJRT_LoadedExecutable* executable) {
  Isolation& state = GetIsolation();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.not_yet_run.insert(executable);
}

// Every format of a program contains the names of its targets verbatim.
bool NamesTarget(std::string_view program) {
  Isolation& state = GetIsolation();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return std::any_of(state.targets.begin(), state.targets.end(),
                     [program](const std::string& target) {
                       return program.find(target) != program.npos;
                     });
}

PJRT_Error* Compile(PJRT_Client_Compile_Args* args) {
  const bool runs_alone =
      NamesTarget({args->program->code, args->program->code_size});
  if (PJRT_Error* error = GetIsolation().compile(args)) return error;
  if (runs_alone) WillRunAlone(args->executable);
  return nullptr;
}

// Always isolated, because the targets of a stored program are unknown.
PJRT_Error* DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* args) {
  if (PJRT_Error* error = GetIsolation().load(args)) return error;
  WillRunAlone(args->loaded_executable);
  return nullptr;
}

PJRT_Error* Destroy(PJRT_LoadedExecutable_Destroy_Args* args) {
  Isolation& state = GetIsolation();
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.not_yet_run.erase(args->executable);
  }
  return state.destroy(args);
}

// Stores `*function` in `*original`, and `replacement` in its place.
template <typename Function>
void Replace(Function** function, Function** original, Function* replacement) {
  if (*function == nullptr) return;
  *original = *function;
  *function = replacement;
}

// Wraps a function that gives work to the device, so that it holds `device` in
// shared mode.
template <auto kMember>
struct Shared;
template <typename Args, PJRT_Error* (*PJRT_Api::*kMember)(Args*)>
struct Shared<kMember> {
  static inline PJRT_Error* (*original)(Args*) = nullptr;
  static PJRT_Error* Call(Args* args) {
    const std::shared_lock<std::shared_mutex> lock(GetIsolation().device);
    return original(args);
  }
  static void Install(PJRT_Api* api) {
    Replace(&(api->*kMember), &original, &Call);
  }
};

}  // namespace

void RunFirstAlone(const std::string& target) {
  Isolation& state = GetIsolation();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.targets.insert(target);
}

void IsolateFirstExecutions(PJRT_Api* api) {
  Isolation& state = GetIsolation();
  state.api = api;
  Replace(&api->PJRT_Client_Compile, &state.compile, &Compile);
  Replace(&api->PJRT_Executable_DeserializeAndLoad, &state.load,
          &DeserializeAndLoad);
  Replace(&api->PJRT_LoadedExecutable_Destroy, &state.destroy, &Destroy);
  Replace(&api->PJRT_LoadedExecutable_Execute, &state.execute, &Execute);
  Shared<&PJRT_Api::PJRT_Client_BufferFromHostBuffer>::Install(api);
  Shared<&PJRT_Api::PJRT_Client_CreateUninitializedBuffer>::Install(api);
  Shared<&PJRT_Api::PJRT_Client_CreateBuffersForAsyncHostToDevice>::Install(
      api);
  Shared<&PJRT_Api::PJRT_AsyncHostToDeviceTransferManager_TransferData>::
      Install(api);
  Shared<&PJRT_Api::PJRT_Buffer_ToHostBuffer>::Install(api);
  Shared<&PJRT_Api::PJRT_Buffer_CopyRawToHost>::Install(api);
  Shared<&PJRT_Api::PJRT_Buffer_CopyToDevice>::Install(api);
  Shared<&PJRT_Api::PJRT_Buffer_CopyToMemory>::Install(api);
}

}  // namespace torch_xla_ext::pjrt_shim
