#include "torch_xla_ext/csrc/pjrt_shim/failed_start.h"

#include "torch_xla_ext/csrc/pjrt_shim/errors.h"

namespace torch_xla_ext::pjrt_shim {
namespace {

thread_local int fail_at_start = 0;

struct StartedApi {
  const PJRT_Api* api = nullptr;
  PJRT_LoadedExecutable_Execute* execute = nullptr;  // the original function
};

// Never destroyed: XLA may use the plugin until the process ends.
StartedApi& GetStartedApi() {
  static StartedApi& state = *new StartedApi;
  return state;
}

// The error of an event that is ready, or null.
PJRT_Error* ErrorIfReady(PJRT_Event* event) {
  const PJRT_Api* api = GetStartedApi().api;
  PJRT_Event_IsReady_Args state = {};
  state.struct_size = PJRT_Event_IsReady_Args_STRUCT_SIZE;
  state.event = event;
  if (PJRT_Error* error = api->PJRT_Event_IsReady(&state)) return error;
  if (!state.is_ready) return nullptr;
  PJRT_Event_Error_Args args = {};
  args.struct_size = PJRT_Event_Error_Args_STRUCT_SIZE;
  args.event = event;
  return api->PJRT_Event_Error(&args);
}

// Destroys the results of a successful execution.
void DestroyOutputs(PJRT_LoadedExecutable_Execute_Args* args) {
  const PJRT_Api* api = GetStartedApi().api;
  PJRT_LoadedExecutable_GetExecutable_Args loaded = {};
  loaded.struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE;
  loaded.loaded_executable = args->executable;
  PJRT_Executable_NumOutputs_Args outputs = {};
  outputs.struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE;
  PJRT_Error* error = api->PJRT_LoadedExecutable_GetExecutable(&loaded);
  if (error == nullptr) {
    outputs.executable = loaded.executable;
    error = api->PJRT_Executable_NumOutputs(&outputs);
    PJRT_Executable_Destroy_Args destroy = {};
    destroy.struct_size = PJRT_Executable_Destroy_Args_STRUCT_SIZE;
    destroy.executable = loaded.executable;
    if (PJRT_Error* other = api->PJRT_Executable_Destroy(&destroy)) {
      DestroyError(api, other);
    }
  }
  if (error != nullptr) DestroyError(api, error);
  for (size_t device = 0; device < args->num_devices; ++device) {
    for (size_t i = 0; i < outputs.num_outputs; ++i) {
      PJRT_Buffer_Destroy_Args buffer = {};
      buffer.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE;
      buffer.buffer = args->output_lists[device][i];
      if (PJRT_Error* other = api->PJRT_Buffer_Destroy(&buffer)) {
        DestroyError(api, other);
      }
    }
    PJRT_Event_Destroy_Args event = {};
    event.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE;
    event.event = args->device_complete_events[device];
    if (PJRT_Error* other = api->PJRT_Event_Destroy(&event)) {
      DestroyError(api, other);
    }
  }
}

PJRT_Error* ExecuteAndReport(PJRT_LoadedExecutable_Execute_Args* args) {
  if (PJRT_Error* error = GetStartedApi().execute(args)) return error;
  if (fail_at_start == 0 || args->device_complete_events == nullptr) {
    return nullptr;
  }
  PJRT_Error* failure = nullptr;
  for (size_t device = 0; device < args->num_devices && failure == nullptr;
       ++device) {
    failure = ErrorIfReady(args->device_complete_events[device]);
  }
  if (failure != nullptr) DestroyOutputs(args);
  return failure;
}

}  // namespace

FailAtStart::FailAtStart() { ++fail_at_start; }

FailAtStart::~FailAtStart() { --fail_at_start; }

void ReportFailedStarts(PJRT_Api* api) {
  StartedApi& state = GetStartedApi();
  state.api = api;
  if (api->PJRT_LoadedExecutable_Execute == nullptr) return;
  state.execute = api->PJRT_LoadedExecutable_Execute;
  api->PJRT_LoadedExecutable_Execute = &ExecuteAndReport;
}

}  // namespace torch_xla_ext::pjrt_shim
