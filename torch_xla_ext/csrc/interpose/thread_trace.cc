// Interposes on the function that registers each new tensor, and on those that
// read or change a device's random seed: a trace has tensors and seeds of its
// own (runtime_fixes/thread_trace.h).
//
// This works because the upstream binary calls all of them through its PLT, or
// through a vtable, which refers to them by their symbols. The upstream
// functions are called from here.
#include "torch_xla_ext/csrc/runtime_fixes/thread_trace.h"

#include <memory>
#include <utility>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"

namespace torch_xla {

using torch::lazy::BackendDevice;
using torch_xla_ext::SeedOfThread;

void XLAGraphExecutor::RegisterTensor(
    std::shared_ptr<torch::lazy::LazyTensor::Data> data) {
  using Function =
      void(XLAGraphExecutor*, std::shared_ptr<torch::lazy::LazyTensor::Data>);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor14RegisterTensorESt10shared_ptrIN5torch4"
      "lazy10LazyTensor4DataEE");
  torch_xla_ext::NoteTraced(data->unique_id);  // before others can see it
  upstream(this, std::move(data));
}

torch::lazy::Value XLAGraphExecutor::GetRngSeed(const BackendDevice& device) {
  using Function = torch::lazy::Value(XLAGraphExecutor*, const BackendDevice&);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor10GetRngSeedERKN5torch4lazy13"
      "BackendDeviceE");
  const SeedOfThread seed(device);
  return upstream(this, device);
}

uint64_t XLAGraphExecutor::GetRunningSeed(const BackendDevice& device) {
  using Function = uint64_t(XLAGraphExecutor*, const BackendDevice&);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor14GetRunningSeedERKN5torch4lazy13"
      "BackendDeviceE");
  const SeedOfThread seed(device);
  return upstream(this, device);
}

void XLAGraphExecutor::SetRngSeed(const BackendDevice& device, uint64_t seed) {
  using Function = void(XLAGraphExecutor*, const BackendDevice&, uint64_t);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor10SetRngSeedERKN5torch4lazy13"
      "BackendDeviceEm");
  const SeedOfThread own(device);
  upstream(this, device, seed);
}

torch::lazy::BackendDataPtr XLAGraphExecutor::GetBaseSeedData(
    const BackendDevice& device) {
  using Function =
      torch::lazy::BackendDataPtr(XLAGraphExecutor*, const BackendDevice&);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor15GetBaseSeedDataERKN5torch4lazy13"
      "BackendDeviceE");
  const SeedOfThread seed(device);
  return upstream(this, device);
}

void XLAGraphExecutor::MarkStep(const BackendDevice& device, bool reset_scope) {
  using Function = void(XLAGraphExecutor*, const BackendDevice&, bool);
  static Function* const upstream = UpstreamFunction(
      static_cast<Function*>(nullptr),
      "_ZN9torch_xla16XLAGraphExecutor8MarkStepERKN5torch4lazy13"
      "BackendDeviceEb");
  const SeedOfThread seed(device);
  upstream(this, device, reset_scope);
}

}  // namespace torch_xla
