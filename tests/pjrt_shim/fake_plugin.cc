// A small PJRT plugin that handles its arguments like a CUDA plugin: it checks
// their sizes, reads and writes them, and keeps a list of targets. It is built
// as several libraries, which differ in their API:
//
//   FAKE_MAJOR, FAKE_MINOR  its version
//   FAKE_GROWTH             how many bytes it appended to some structures
//   FAKE_NAMED_VALUE_GROWTH the same for the elements of its arrays
//   FAKE_TABLE_SIZE         the size of its table of functions
//   FAKE_CLIENT             it makes a client, of no devices
//   FAKE_NO_EXTENSION       it takes no custom-call targets and no types
//   FAKE_EXTENSION_VERSION  that of its extensions for them: 3 has traits of
//                           targets, and needs the deleters of types
//   FAKE_FFI_MINOR          the minor version of its XLA FFI, which it hands to
//                           handlers
//   FAKE_NO_PROFILER        it has no profiler
#include "tests/pjrt_shim/fake_plugin.h"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "torch_xla_ext/csrc/pjrt_shim/record_stage.h"
#include "torch_xla_ext/csrc/pjrt_shim/targets.h"
#include "xla/ffi/api/c_api.h"
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/pjrt/c/pjrt_c_api_profiler_extension.h"

#ifndef FAKE_MAJOR
#define FAKE_MAJOR 0
#endif
#ifndef FAKE_GROWTH
#define FAKE_GROWTH 0
#endif
#ifndef FAKE_NAMED_VALUE_GROWTH
#define FAKE_NAMED_VALUE_GROWTH 0
#endif
#ifndef FAKE_EXTENSION_VERSION
#define FAKE_EXTENSION_VERSION 2
#endif
#ifndef FAKE_FFI_MINOR
#define FAKE_FFI_MINOR 1
#endif
#ifndef FAKE_TABLE_SIZE
#define FAKE_TABLE_SIZE PJRT_Api_STRUCT_SIZE
#endif

struct PJRT_Error {
  std::string text;
};
struct XLA_FFI_Error {
  std::string text;
};

namespace {

using torch_xla_ext::pjrt_shim::CustomCallExtension;
using torch_xla_ext::pjrt_shim::ErrorDetailsArgs;
using torch_xla_ext::pjrt_shim::FfiExtension;
using torch_xla_ext::pjrt_shim::RegisterCustomCallArgs;
using torch_xla_ext::pjrt_shim::RegisterHandlerArgs;
using torch_xla_ext::pjrt_shim::RegisterTypeArgs;

FakeObservations observations;

// The same check as XLA's, with the same text.
PJRT_Error* CheckSize(const char* name, size_t expected, size_t got) {
  if (got >= expected) return nullptr;
  return new PJRT_Error{std::string("Unexpected ") + name + " size: expected " +
                        std::to_string(expected) + ", got " +
                        std::to_string(got) +
                        ". The plugin is likely built with a later version "
                        "than the framework."};
}
#define CHECK_SIZE(name, size, structure)                                     \
  if (PJRT_Error* error = CheckSize(#name, size, (structure)->struct_size)) { \
    ++observations.refusals;                                                  \
    return error;                                                             \
  }
#define CHECK_GROWN(name, structure) \
  CHECK_SIZE(name, name##_STRUCT_SIZE + FAKE_GROWTH, structure)

// The members that the fake plugin adds.
template <typename Structure>
char* NewMembers(Structure* structure, size_t old_size) {
  return reinterpret_cast<char*>(structure) + old_size;
}

void ErrorDestroy(PJRT_Error_Destroy_Args* args) { delete args->error; }

void ErrorMessage(PJRT_Error_Message_Args* args) {
  args->message = args->error->text.data();
  args->message_size = args->error->text.size();
}

PJRT_Error* ErrorGetCode(PJRT_Error_GetCode_Args* args) {
  args->code = PJRT_Error_Code_INTERNAL;
  return nullptr;
}

PJRT_Error* Initialize(PJRT_Plugin_Initialize_Args* args) {
  CHECK_SIZE(PJRT_Plugin_Initialize_Args,
             PJRT_Plugin_Initialize_Args_STRUCT_SIZE, args);
  return nullptr;
}

PJRT_Error* Attributes(PJRT_Plugin_Attributes_Args* args) {
  // Since 0.73 the size includes the last member.
  CHECK_SIZE(PJRT_Plugin_Attributes_Args,
             FAKE_GROWTH > 0 ? sizeof(PJRT_Plugin_Attributes_Args) : 24, args);
  static PJRT_NamedValue value = {};
  value.struct_size = PJRT_NamedValue_STRUCT_SIZE + FAKE_NAMED_VALUE_GROWTH;
  value.name = "fake";
  value.name_size = 4;
  value.type = PJRT_NamedValue_kInt64;
  value.int64_value = 7;
  value.value_size = 1;
  args->attributes = &value;
  args->num_attributes = 1;
  return nullptr;
}

#ifdef FAKE_CLIENT
PJRT_Error* ClientCreate(PJRT_Client_Create_Args* args) {
  args->client = reinterpret_cast<PJRT_Client*>(&observations);
  return nullptr;
}
PJRT_Error* ClientDestroy(PJRT_Client_Destroy_Args*) { return nullptr; }
PJRT_Error* ClientPlatformName(PJRT_Client_PlatformName_Args* args) {
  args->platform_name = "cuda";
  args->platform_name_size = 4;
  return nullptr;
}
PJRT_Error* ClientPlatformVersion(PJRT_Client_PlatformVersion_Args* args) {
  args->platform_version = "fake";
  args->platform_version_size = 4;
  return nullptr;
}
PJRT_Error* ClientTopology(PJRT_Client_TopologyDescription_Args*) {
  return new PJRT_Error{"fake plugin: no topology"};
}
PJRT_Error* ClientDevices(PJRT_Client_Devices_Args* args) {
  args->num_devices = 0;
  return nullptr;
}
PJRT_Error* ClientAddressableDevices(
    PJRT_Client_AddressableDevices_Args* args) {
  args->num_addressable_devices = 0;
  return nullptr;
}
PJRT_Error* ClientMemories(PJRT_Client_AddressableMemories_Args* args) {
  args->num_addressable_memories = 0;
  return nullptr;
}
#else
PJRT_Error* ClientCreate(PJRT_Client_Create_Args* args) {
  return new PJRT_Error{"fake plugin: no client"};
}
#endif

// Writes results to old and new members.
PJRT_Error* MemoryStats(PJRT_Device_MemoryStats_Args* args) {
  CHECK_GROWN(PJRT_Device_MemoryStats_Args, args);
  args->bytes_in_use = 12345;
  args->peak_pool_bytes_is_set = true;
  char* members = NewMembers(args, PJRT_Device_MemoryStats_Args_STRUCT_SIZE);
  for (int i = 0; i < FAKE_GROWTH; ++i) members[i] = -1;
  return nullptr;
}

// A nested structure with new members, inside one with new members.
PJRT_Error* Execute(PJRT_LoadedExecutable_Execute_Args* args) {
  CHECK_GROWN(PJRT_LoadedExecutable_Execute_Args, args);
  CHECK_GROWN(PJRT_ExecuteOptions, args->options);
  ++observations.executions;
  observations.options_size = args->options->struct_size;
  observations.launch_id = args->options->launch_id;
  const char* members =
      NewMembers(args->options, PJRT_ExecuteOptions_STRUCT_SIZE);
  for (int i = 0; i < FAKE_GROWTH; ++i) {
    if (members[i] != 0) observations.new_members_are_zero = false;
  }
  args->num_args = 99;  // a result, as far as the test is concerned
  observations.executes = true;
  std::this_thread::sleep_for(
      std::chrono::milliseconds(observations.execution_ms));
  observations.executes = false;
  if (args->device_complete_events != nullptr) {
    ++observations.events;
    observations.polls = 0;
    args->device_complete_events[0] =
        reinterpret_cast<PJRT_Event*>(&observations);
    ++observations.buffers;
    args->output_lists[0][0] = reinterpret_cast<PJRT_Buffer*>(&observations);
  }
  return nullptr;
}

template <typename Handle>
Handle* AnyHandle() {
  return reinterpret_cast<Handle*>(&observations);
}

PJRT_Error* Compile(PJRT_Client_Compile_Args* args) {
  observations.compile_options.assign(args->compile_options,
                                      args->compile_options_size);
  args->executable = AnyHandle<PJRT_LoadedExecutable>();
  return nullptr;
}
PJRT_Error* GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args* args) {
  args->executable = AnyHandle<PJRT_Executable>();
  return nullptr;
}
PJRT_Error* NumOutputs(PJRT_Executable_NumOutputs_Args* args) {
  args->num_outputs = 1;
  return nullptr;
}
PJRT_Error* DestroyExecutable(PJRT_Executable_Destroy_Args*) { return nullptr; }

PJRT_Error* BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args*) {
  ++observations.transfers;
  if (observations.executes) ++observations.transfers_meanwhile;
  return nullptr;
}

// An event that is ready at the third query, but not at the second.
PJRT_Error* ReadyEvent(PJRT_Buffer_ReadyEvent_Args* args) {
  ++observations.events;
  observations.polls = 0;
  args->event = AnyHandle<PJRT_Event>();
  return nullptr;
}
PJRT_Error* IsReady(PJRT_Event_IsReady_Args* args) {
  args->is_ready = ++observations.polls == 3 || observations.starts_fail;
  return nullptr;
}
PJRT_Error* EventError(PJRT_Event_Error_Args*) {
  if (!observations.starts_fail) return nullptr;
  return new PJRT_Error{"fake plugin: the kernel refuses its operands"};
}
PJRT_Error* DestroyBuffer(PJRT_Buffer_Destroy_Args*) {
  --observations.buffers;
  return nullptr;
}
PJRT_Error* DestroyEvent(PJRT_Event_Destroy_Args*) {
  --observations.events;
  return nullptr;
}

// A nested structure for the results.
PJRT_Error* OptimizedProgram(PJRT_Executable_OptimizedProgram_Args* args) {
  CHECK_GROWN(PJRT_Program, args->program);
  args->program->code_size = 4321;
  return nullptr;
}

// Errors for a size that is never long enough, and for an unknown structure.
PJRT_Error* Serialize(PJRT_Executable_Serialize_Args* args) {
  return CheckSize("PJRT_Executable_Serialize_Args", args->struct_size + 8,
                   args->struct_size);
}
PJRT_Error* Fingerprint(PJRT_Executable_Fingerprint_Args* args) {
  ++observations.fingerprints;
  return new PJRT_Error{"not implemented here"};
}

// Field 2 of a message, a map of two entries, in a different order each time.
PJRT_Error* SerializeTopology(PJRT_TopologyDescription_Serialize_Args* args) {
  CHECK_GROWN(PJRT_TopologyDescription_Serialize_Args, args);
  static bool is_first = false;
  is_first = !is_first;
  const std::string one = "\x12\x06\x0a\x01k\x12\x01v";
  const std::string other = "\x12\x06\x0a\x01l\x12\x01w";
  auto* bytes = new std::string(is_first ? one + other : other + one);
  ++observations.topologies;
  args->serialized_bytes = bytes->data();
  args->serialized_bytes_size = bytes->size();
  args->serialized_topology = reinterpret_cast<PJRT_SerializedTopology*>(bytes);
  args->serialized_topology_deleter = [](PJRT_SerializedTopology* topology) {
    --observations.topologies;
    delete reinterpret_cast<std::string*>(topology);
  };
  return nullptr;
}

constexpr bool kIsVersion3 = FAKE_EXTENSION_VERSION >= 3;

// Registers a target like XLA FFI 0.5: with the stages that the caller's
// version has.
XLA_FFI_Error* RegisterHandler(XLA_FFI_Handler_Register_Args* given) {
  const auto* args = reinterpret_cast<const RegisterHandlerArgs*>(given);
  const std::string name(args->name.ptr, args->name.len);
  const std::string platform(args->platform.ptr, args->platform.len);
  if (platform != "CUDA") return new XLA_FFI_Error{"no such platform"};
  if (name == "refused") return new XLA_FFI_Error{"fake plugin: not this one"};
  ++observations.registrations;
  std::strncpy(observations.last_target, name.c_str(),
               sizeof(observations.last_target) - 1);
  std::memcpy(observations.last_functions, args->stages, sizeof(args->stages));
  observations.last_api = 1;
  observations.last_traits = args->traits;
  return nullptr;
}

void ErrorDetails(XLA_FFI_Error_GetMessage_Args* given) {
  auto* args = reinterpret_cast<ErrorDetailsArgs*>(given);
  if (args->struct_size < offsetof(ErrorDetailsArgs, code) + sizeof(int)) {
    return;
  }
  args->message = args->error->text.c_str();
}

// Asks a handler for its metadata, as XLA does, and hands over its FFI.
void AskForMetadata(void* handler) {
  static XLA_FFI_Api ffi = {};
  ffi.struct_size = sizeof(ffi);
  ffi.api_version.minor_version = FAKE_FFI_MINOR;
  ffi.XLA_FFI_Handler_Register = &RegisterHandler;
  ffi.XLA_FFI_Error_GetMessage = &ErrorDetails;
  ffi.XLA_FFI_Error_Destroy =
      +[](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
  XLA_FFI_Metadata metadata = {};
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame = {};
  frame.extension_start = &extension.extension_base;
  frame.api = &ffi;
  reinterpret_cast<XLA_FFI_Handler*>(handler)(&frame);
  observations.probe_minor = metadata.api_version.minor_version;
}

[[maybe_unused]] PJRT_Error* RegisterCustomCall(RegisterCustomCallArgs* args) {
  CHECK_SIZE(RegisterCustomCallArgs, offsetof(RegisterCustomCallArgs, traits),
             args);
  const std::string name(args->function_name, args->function_name_size);
  if (args->api_version > 1) {
    return new PJRT_Error{"API version " + std::to_string(args->api_version) +
                          " not supported for PJRT GPU plugin."};
  }
  if (name == "refused") return new PJRT_Error{"fake plugin: not this one"};
  if (name == torch_xla_ext::pjrt_shim::kFfiProbe) {
    AskForMetadata(args->handler_execute);
    return nullptr;
  }
  ++observations.registrations;
  std::strncpy(observations.last_target, name.c_str(),
               sizeof(observations.last_target) - 1);
  void* functions[] = {args->handler_instantiate, args->handler_prepare,
                       args->handler_initialize, args->handler_execute,
                       nullptr};
  std::memcpy(observations.last_functions, functions, sizeof(functions));
  observations.last_api = args->api_version;
  // Like XLA, accepts a caller whose version has no traits.
  constexpr size_t kSizeWithTraits =
      offsetof(RegisterCustomCallArgs, traits) + sizeof(args->traits);
  observations.last_traits =
      kIsVersion3 && args->struct_size >= kSizeWithTraits ? args->traits : 0;
  return nullptr;
}

// Each name has one id, which is assigned if the caller gives 0.
[[maybe_unused]] PJRT_Error* RegisterType(RegisterTypeArgs* args) {
  CHECK_SIZE(
      RegisterTypeArgs,
      kIsVersion3 ? sizeof(*args) : offsetof(RegisterTypeArgs, type_info),
      args);
  const std::string name(args->type_name, args->type_name_size);
  static std::map<std::string, int64_t> ids;
  static int64_t next = 100;
  observations.last_type_id = args->type_id;
  std::strncpy(observations.last_type, name.c_str(),
               sizeof(observations.last_type) - 1);
  if (kIsVersion3) observations.last_deleter = args->type_info->deleter;
  const bool is_new = ids.count(name) == 0;
  if (args->type_id == 0 ? !is_new : !is_new && ids[name] != args->type_id) {
    return new PJRT_Error{"Type name " + name + " already registered"};
  }
  if (args->type_id == 0) args->type_id = next++;
  ids[name] = args->type_id;
  return nullptr;
}

#ifndef FAKE_NO_EXTENSION
// The flag exists since version 3.
CustomCallExtension custom_call = {
    {kIsVersion3 ? sizeof(CustomCallExtension)
                 : offsetof(CustomCallExtension, handles_traits),
     PJRT_Extension_Type_Gpu_Custom_Call, nullptr},
    RegisterCustomCall,
    true,
};
FfiExtension ffi = {
    {sizeof(FfiExtension), PJRT_Extension_Type_FFI, &custom_call.base},
    RegisterType,
};
#endif

#ifndef FAKE_NO_PROFILER
PLUGIN_Profiler_Error* ProfilerStart(PLUGIN_Profiler_Start_Args*) {
  ++observations.profiles;
  return nullptr;
}

// The table, and the functions that the fake plugin adds.
struct {
  PLUGIN_Profiler_Api api;
  char new_functions[FAKE_GROWTH + 1];
} profiler;

PJRT_Profiler_Extension profiler_extension = {
    {PJRT_Profiler_Extension_STRUCT_SIZE, PJRT_Extension_Type_Profiler,
     nullptr},
    &profiler.api,
    0,
};
#endif

PJRT_Api MakeApi() {
  PJRT_Api api = {};
  api.struct_size = FAKE_TABLE_SIZE;
  static PJRT_Extension_Base other = {sizeof(PJRT_Extension_Base),
                                      PJRT_Extension_Type_Stream, nullptr};
  api.extension_start = &other;
#ifndef FAKE_NO_EXTENSION
  other.next = &ffi.base;
#endif
#ifndef FAKE_NO_PROFILER
  profiler.api.struct_size = PLUGIN_Profiler_Api_STRUCT_SIZE + FAKE_GROWTH;
  profiler.api.start = ProfilerStart;
  profiler_extension.base.next = other.next;
  other.next = &profiler_extension.base;
#endif
  api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  api.pjrt_api_version.major_version = FAKE_MAJOR;
  api.pjrt_api_version.minor_version = FAKE_MINOR;
  api.PJRT_Error_Destroy = ErrorDestroy;
  api.PJRT_Error_Message = ErrorMessage;
  api.PJRT_Error_GetCode = ErrorGetCode;
  api.PJRT_Plugin_Initialize = Initialize;
  api.PJRT_Plugin_Attributes = Attributes;
  api.PJRT_Client_Create = ClientCreate;
#ifdef FAKE_CLIENT
  api.PJRT_Client_Destroy = ClientDestroy;
  api.PJRT_Client_PlatformName = ClientPlatformName;
  api.PJRT_Client_PlatformVersion = ClientPlatformVersion;
  api.PJRT_Client_TopologyDescription = ClientTopology;
  api.PJRT_Client_Devices = ClientDevices;
  api.PJRT_Client_AddressableDevices = ClientAddressableDevices;
  api.PJRT_Client_AddressableMemories = ClientMemories;
#endif
  api.PJRT_Device_MemoryStats = MemoryStats;
  api.PJRT_Client_Compile = Compile;
  api.PJRT_Client_BufferFromHostBuffer = BufferFromHostBuffer;
  api.PJRT_Buffer_Destroy = DestroyBuffer;
  api.PJRT_Buffer_ReadyEvent = ReadyEvent;
  api.PJRT_Event_Error = EventError;
  api.PJRT_Event_IsReady = IsReady;
  api.PJRT_Event_Destroy = DestroyEvent;
  api.PJRT_LoadedExecutable_GetExecutable = GetExecutable;
  api.PJRT_LoadedExecutable_Execute = Execute;
  api.PJRT_Executable_NumOutputs = NumOutputs;
  api.PJRT_Executable_Destroy = DestroyExecutable;
  api.PJRT_Executable_OptimizedProgram = OptimizedProgram;
  api.PJRT_Executable_Serialize = Serialize;
  api.PJRT_Executable_Fingerprint = Fingerprint;
  api.PJRT_TopologyDescription_Serialize = SerializeTopology;
  return api;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api api = MakeApi();
  return &api;
}

__attribute__((visibility("default"))) FakeObservations* GetFakeObservations() {
  return &observations;
}

}  // extern "C"
