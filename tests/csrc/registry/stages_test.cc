// Tests the adapters between a plugin and the stages of a handler, with two
// small stand-ins for XLA's FFI: version 0.1, and a newer version, as in a
// plugin. stateful_handlers_test.py tests those for XLA:CPU.
#include "torch_xla_ext/csrc/registry/stages.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

struct XLA_FFI_Error {
  std::string text;
};
struct XLA_FFI_ExecutionContext {};

namespace {

namespace ffi = xla::ffi;
using torch_xla_ext::DeleteState;
using torch_xla_ext::FunctionsForHost;
using torch_xla_ext::FunctionsForPlugin;
using torch_xla_ext::kMaxAdaptedTargets;
using torch_xla_ext::SetHasDeleter;
using torch_xla_ext::TargetFunctions;

int failures = 0;

#define EXPECT(condition)                                            \
  if (!(condition)) {                                                \
    std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, \
                 #condition);                                        \
    ++failures;                                                      \
  }

// The values that the stand-in received.
void* state = nullptr;
int64_t state_type = 0;
bool refuses_states = false;

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) {
  return new XLA_FFI_Error{args->message};
}
void GetMessage(XLA_FFI_Error_GetMessage_Args* args) {
  args->message = args->error->text.c_str();
}
void DestroyError(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }

XLA_FFI_Error* SetState(XLA_FFI_State_Set_Args* args) {
  EXPECT(args->struct_size == XLA_FFI_State_Set_Args_STRUCT_SIZE);
  state = args->state;
  state_type = args->type_id->type_id;
  return nullptr;
}

// Only the size of a structure shows its version.
struct SetArgsOfVersion2 {
  size_t struct_size;
  void* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_TypeId* type_id;
  void* state;
};
struct StateArgsOfVersion3 {
  size_t struct_size;
  void* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_TypeId* type_id;
  void* state;
};

// Like XLA FFI 0.2; and like 0.3 and newer, when these refuse older structures.
template <typename Args>
XLA_FFI_Error* SetStateOfNewerVersion(XLA_FFI_State_Set_Args* args) {
  if (args->struct_size != sizeof(Args)) return new XLA_FFI_Error{"misread"};
  if (refuses_states) return new XLA_FFI_Error{"refused"};
  Args values;
  std::memcpy(&values, args, sizeof(values));
  state = values.state;
  state_type = values.type_id->type_id;
  return nullptr;
}

XLA_FFI_Error* GetStateOfVersion3(XLA_FFI_State_Get_Args* args) {
  if (args->struct_size != sizeof(StateArgsOfVersion3)) {
    return new XLA_FFI_Error{"misread"};
  }
  auto* values = reinterpret_cast<StateArgsOfVersion3*>(args);
  EXPECT(values->stage == XLA_FFI_ExecutionStage_INSTANTIATE);
  EXPECT(values->type_id->type_id == state_type);
  values->state = state;
  return nullptr;
}

XLA_FFI_Api MakeApi(int minor_version) {
  XLA_FFI_Api api = {};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version.minor_version = minor_version;
  api.XLA_FFI_Error_Create = CreateError;
  api.XLA_FFI_Error_GetMessage = GetMessage;
  api.XLA_FFI_Error_Destroy = DestroyError;
  api.XLA_FFI_State_Set = minor_version == 1 ? SetState
                          : minor_version == 2
                              ? SetStateOfNewerVersion<SetArgsOfVersion2>
                              : SetStateOfNewerVersion<StateArgsOfVersion3>;
  api.XLA_FFI_State_Get = GetStateOfVersion3;
  return api;
}

XLA_FFI_Api process_api = MakeApi(1);

}  // namespace

extern "C" const XLA_FFI_Api* XLA_FFI_GetApi() { return &process_api; }

namespace {

struct Plan {
  static ffi::TypeId id;
  static int deleted;
  ~Plan() { ++deleted; }
};
ffi::TypeId Plan::id = {5};
int Plan::deleted = 0;

std::vector<XLA_FFI_ExecutionStage> stages;  // as they were called

ffi::ErrorOr<std::unique_ptr<Plan>> Instantiate() {
  stages.push_back(XLA_FFI_ExecutionStage_INSTANTIATE);
  return std::make_unique<Plan>();
}
XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate());

ffi::Error Execute() {
  stages.push_back(XLA_FFI_ExecutionStage_EXECUTE);
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kExecute, Execute, ffi::Ffi::Bind());

ffi::Error ExecuteWithState(Plan* plan) {
  return plan == state ? ffi::Error::Success()
                       : ffi::Error::Internal("another state");
}
XLA_FFI_DEFINE_HANDLER(kExecuteWithState, ExecuteWithState,
                       ffi::Ffi::Bind().Ctx<ffi::State<Plan>>());

ffi::Error Prepare() {
  stages.push_back(XLA_FFI_ExecutionStage_PREPARE);
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER(kPrepare, Prepare,
                       ffi::Ffi::Bind<ffi::ExecutionStage::kPrepare>());

XLA_FFI_Error* Initialize(XLA_FFI_CallFrame* frame) {
  stages.push_back(frame->stage);
  return nullptr;
}

// A handler that was compiled with newer headers. It reports this version, and
// requires a larger structure for its metadata.
XLA_FFI_Error* NewerInstantiate(XLA_FFI_CallFrame* frame) {
  auto* metadata =
      reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)
          ->metadata;
  EXPECT(metadata->struct_size >= XLA_FFI_Metadata_STRUCT_SIZE + 8);
  metadata->api_version.minor_version = 4;
  return nullptr;
}

// The same handler, but its state's type is not registered.
XLA_FFI_Error* UnregisteredInstantiate(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error_Create_Args args = {};
  args.message = "Types must be registered before";
  return frame->api->XLA_FFI_Error_Create(&args);
}

template <typename Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

XLA_FFI_ExecutionContext context = {};

XLA_FFI_CallFrame Frame(const XLA_FFI_Api* api, XLA_FFI_ExecutionStage stage) {
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = api;
  frame.ctx = &context;
  frame.stage = stage;
  frame.args.struct_size = XLA_FFI_Args_STRUCT_SIZE;
  frame.rets.struct_size = XLA_FFI_Rets_STRUCT_SIZE;
  frame.attrs.struct_size = XLA_FFI_Attrs_STRUCT_SIZE;
  return frame;
}

// The text of the error; "" if there is none.
std::string Call(void* handler, XLA_FFI_CallFrame frame) {
  const std::unique_ptr<XLA_FFI_Error> error(
      reinterpret_cast<XLA_FFI_Handler*>(handler)(&frame));
  return error == nullptr ? "" : error->text;
}

bool IsCompatible(void* handler) {
  XLA_FFI_Metadata metadata = {};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension = {};
  extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame = Frame(&process_api, XLA_FFI_ExecutionStage_EXECUTE);
  frame.extension_start = &extension.extension_base;
  EXPECT(Call(handler, frame).empty());
  EXPECT(metadata.api_version.minor_version == XLA_FFI_API_MINOR);
  return metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
}

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

void TestInstantiateInPlugin() {
  const XLA_FFI_Api newer = MakeApi(3);
  TargetFunctions functions = {Address(kInstantiate), Address(kPrepare),
                               Address(&Initialize), Address(kExecute), false};
  const TargetFunctions result = FunctionsForPlugin("a", functions, true);
  // The plugin calls the other stages itself.
  EXPECT(result.prepare != functions.prepare);
  EXPECT(result.initialize != functions.initialize);
  EXPECT(result.execute != functions.execute);
  EXPECT(result.instantiate != functions.instantiate);
  stages.clear();
  EXPECT(Call(result.prepare, Frame(&newer, XLA_FFI_ExecutionStage_PREPARE))
             .empty());
  EXPECT(Call(result.execute, Frame(&newer, XLA_FFI_ExecutionStage_EXECUTE))
             .empty());
  EXPECT((stages == std::vector{XLA_FFI_ExecutionStage_PREPARE,
                                XLA_FFI_ExecutionStage_EXECUTE}));
  EXPECT(!IsCompatible(result.instantiate));

  XLA_FFI_CallFrame frame = Frame(&newer, XLA_FFI_ExecutionStage_INSTANTIATE);
  frame.args.size = 2;
  frame.rets.size = 1;
  EXPECT(Contains(Call(functions.instantiate, frame), "Wrong number of"));
  EXPECT(Call(result.instantiate, frame).empty());
  EXPECT(state != nullptr && state_type == 5);
  EXPECT(Plan::deleted == 0);
  DeleteState(state);
  EXPECT(Plan::deleted == 1);
  DeleteState(state);  // not known any more
  EXPECT(Plan::deleted == 1);

  // The state in another stage.
  TargetFunctions with_state;
  with_state.instantiate = functions.instantiate;
  with_state.execute = Address(kExecuteWithState);
  const TargetFunctions of_state = FunctionsForPlugin("s", with_state, true);
  EXPECT(Call(of_state.instantiate, frame).empty());
  const XLA_FFI_CallFrame execute =
      Frame(&newer, XLA_FFI_ExecutionStage_EXECUTE);
  EXPECT(Call(of_state.execute, execute).empty());
  EXPECT(Contains(Call(Address(kExecuteWithState), execute), "misread"));
  DeleteState(state);
  EXPECT(Plan::deleted == 2);
  Plan::deleted = 1;

  // Version 0.2.
  const XLA_FFI_Api second = MakeApi(2);
  EXPECT(Call(result.instantiate,
              Frame(&second, XLA_FFI_ExecutionStage_INSTANTIATE))
             .empty());
  DeleteState(state);
  EXPECT(Plan::deleted == 2);
  Plan::deleted = 1;

  refuses_states = true;
  EXPECT(Call(result.instantiate, frame) == "refused");
  EXPECT(Plan::deleted == 2);
  refuses_states = false;

  // A plugin of the same version.
  frame = Frame(&process_api, XLA_FFI_ExecutionStage_INSTANTIATE);
  EXPECT(Call(result.instantiate, frame).empty());
  EXPECT(state_type == 5);
  DeleteState(state);  // the plugin has its deleter
  EXPECT(Plan::deleted == 2);
  delete static_cast<Plan*>(state);

  // A type with a deleter of its own.
  SetHasDeleter(Plan::id.type_id);
  EXPECT(Call(result.instantiate,
              Frame(&newer, XLA_FFI_ExecutionStage_INSTANTIATE))
             .empty());
  DeleteState(state);
  EXPECT(Plan::deleted == 3);
  delete static_cast<Plan*>(state);

  for (void* newer_handler :
       {Address(&NewerInstantiate), Address(&UnregisteredInstantiate)}) {
    functions.instantiate = newer_handler;
    EXPECT(FunctionsForPlugin("b", functions, true) == functions);
  }
}

void TestTraits() {
  TargetFunctions functions;
  functions.execute = Address(kExecute);
  EXPECT(FunctionsForPlugin("a", functions, false) == functions);
  functions.command_buffer_compatible = true;
  EXPECT(FunctionsForPlugin("a", functions, true) == functions);
  const TargetFunctions result = FunctionsForPlugin("a", functions, false);
  EXPECT(!IsCompatible(functions.execute));
  EXPECT(IsCompatible(result.execute));
  stages.clear();
  EXPECT(
      Call(result.execute, Frame(&process_api, XLA_FFI_ExecutionStage_EXECUTE))
          .empty());
  EXPECT(stages.size() == 1);
  // XLA calls the earlier stages once, not twice.
  functions.prepare = Address(kPrepare);
  stages.clear();
  EXPECT(Call(FunctionsForPlugin("a", functions, false).execute,
              Frame(&process_api, XLA_FFI_ExecutionStage_EXECUTE))
             .empty());
  EXPECT(stages.size() == 1);
}

void TestLimit() {
  static char functions[kMaxAdaptedTargets + 1];
  TargetFunctions each = {nullptr, Address(kPrepare), nullptr, nullptr, false};
  std::string text;
  size_t count = 0;
  try {
    for (; count <= kMaxAdaptedTargets; ++count) {
      each.execute = &functions[count];
      FunctionsForHost("x" + std::to_string(count), each);
    }
  } catch (const std::runtime_error& error) {
    text = error.what();
  }
  EXPECT(count > 0 && count < kMaxAdaptedTargets);
  EXPECT(Contains(text, ("\"x" + std::to_string(count) + "\"").c_str()));
  EXPECT(Contains(text, "which is the limit"));
  each.execute = &functions[0];  // which has its place
  EXPECT(!(FunctionsForHost("x", each) == each));
}

}  // namespace

int main() {
  TestInstantiateInPlugin();
  TestTraits();
  TestLimit();
  return failures == 0 ? 0 : 1;
}
