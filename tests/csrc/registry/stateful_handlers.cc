// FFI handlers with several stages and a state, as a user would write and
// compile them: with XLA's own macros, and linked with nothing of torch_xla.
#include <cstdint>
#include <memory>

#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Floats = ffi::Buffer<ffi::F32>;
using Result = ffi::Result<Floats>;

// How often each stage has been called; CountCalls returns it.
struct Counts {
  int64_t instantiated;
  int64_t prepared;
  int64_t initialized;
  int64_t executed;
  int64_t destroyed;
} counts = {};

// The plan of a call. Every call in a program has its own.
struct Plan {
  static ffi::TypeId id;

  explicit Plan(double scale) : scale(scale) { ++counts.instantiated; }
  ~Plan() { ++counts.destroyed; }

  double scale;
  bool prepared = false;
  bool initialized = false;
  int64_t executions = 0;
};
ffi::TypeId Plan::id = {};

// A type that no test registers.
struct Unregistered {
  static ffi::TypeId id;
};
ffi::TypeId Unregistered::id = {};

ffi::ErrorOr<std::unique_ptr<Plan>> Instantiate(double scale) {
  if (scale < 0) {
    return ffi::Unexpected(
        ffi::Error::InvalidArgument("Scale: scale must not be negative"));
  }
  return std::make_unique<Plan>(scale);
}

ffi::Error Prepare(Plan* plan, Floats, Result, double scale) {
  ++counts.prepared;
  plan->prepared = plan->scale == scale;
  if (scale == 77) return ffi::Error::Internal("Scale: prepare fails");
  return ffi::Error::Success();
}

ffi::Error Initialize(Plan* plan, Floats, Result, double) {
  ++counts.initialized;
  plan->initialized = plan->prepared;
  return ffi::Error::Success();
}

// The result is scale * x + the number of earlier executions of this call.
void Multiply(Plan* plan, Floats x, Result result) {
  ++counts.executed;
  for (size_t i = 0; i < x.element_count(); ++i) {
    result->typed_data()[i] =
        plan->scale * x.typed_data()[i] + static_cast<float>(plan->executions);
  }
  ++plan->executions;
}

ffi::Error Execute(Plan* plan, Floats x, Result result, double) {
  Multiply(plan, x, result);
  return ffi::Error::Success();
}

ffi::Error ExecuteInitialized(Plan* plan, Floats x, Result result, double) {
  if (!plan->initialized) return ffi::Error::Internal("not initialized");
  plan->prepared = plan->initialized = false;  // for this execution
  Multiply(plan, x, result);
  return ffi::Error::Success();
}

ffi::ErrorOr<std::unique_ptr<Unregistered>> InstantiateUnregistered() {
  return std::make_unique<Unregistered>();
}

ffi::Error AskForUserData(Plan*, Floats, Result) {
  return ffi::Error::Success();
}
ffi::Error Nothing(Floats, Result) { return ffi::Error::Success(); }

ffi::Future PrepareLater(Floats, Result) {
  ffi::Promise promise;
  promise.SetAvailable();
  return ffi::Future(promise);
}

template <ffi::ExecutionStage stage>
auto BindStage() {
  return ffi::Ffi::Bind<stage>()
      .template Ctx<ffi::State<Plan>>()
      .template Arg<Floats>()
      .template Ret<Floats>()
      .template Attr<double>("scale");
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate,
                       ffi::Ffi::BindInstantiate().Attr<double>("scale"));
XLA_FFI_DEFINE_HANDLER(kPrepare, Prepare,
                       BindStage<ffi::ExecutionStage::kPrepare>());
XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       BindStage<ffi::ExecutionStage::kInitialize>());
XLA_FFI_DEFINE_HANDLER(kExecuteInitialized, ExecuteInitialized,
                       BindStage<ffi::ExecutionStage::kExecute>());

}  // namespace

// The handlers of `ScaleInStages` are found by its bundle.
extern "C" {

const XLA_FFI_Handler_Bundle* ScaleInStagesHostBundle() {
  static const XLA_FFI_Handler_Bundle bundle = {
      kInstantiate, kPrepare, kInitialize, kExecuteInitialized};
  return &bundle;
}

// A wrong bundle, without the stage execute.
const XLA_FFI_Handler_Bundle* NoExecuteHostBundle() {
  static const XLA_FFI_Handler_Bundle bundle = {kInstantiate, nullptr, nullptr,
                                                nullptr};
  return &bundle;
}

const void* NullHostBundle() { return nullptr; }

const void* NumbersHostBundle() {
  static const int64_t numbers[] = {1, 2, 3, 4};
  return numbers;
}

XLA_FFI_TypeId* ScaleInStagesTypeId() { return &Plan::id; }
XLA_FFI_TypeId* UnregisteredTypeId() { return &Unregistered::id; }

// The type information that headers of XLA FFI 0.2 make.
const void* NewerTypeInfo() {
  static const struct {
    size_t struct_size;
    void* extension_start;
    void (*deleter)(void* state);
  } info = {sizeof(info), nullptr,
            [](void* state) { delete static_cast<Plan*>(state); }};
  return &info;
}

void CountCalls(int64_t* result) {
  const int64_t values[] = {counts.instantiated, counts.prepared,
                            counts.initialized, counts.executed,
                            counts.destroyed};
  for (int64_t value : values) *result++ = value;
}

}  // extern "C"

// Exported one by one, as most libraries do.
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ScaleInstantiate, Instantiate,
    ffi::Ffi::BindInstantiate().Attr<double>("scale"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(ScaleExecute, Execute,
                              BindStage<ffi::ExecutionStage::kExecute>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(InstantiateOther, InstantiateUnregistered,
                              ffi::Ffi::BindInstantiate());
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    ExecuteUserData, AskForUserData,
    ffi::Ffi::Bind().Ctx<ffi::UserData<Plan>>().Arg<Floats>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(ExecuteNothing, Nothing,
                              ffi::Ffi::Bind().Arg<Floats>().Ret<Floats>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(PrepareAsynchronously, PrepareLater,
                              ffi::Ffi::Bind<ffi::ExecutionStage::kPrepare>()
                                  .Arg<Floats>()
                                  .Ret<Floats>());
