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
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::RegisterTensor);
  torch_xla_ext::NoteTraced(data->unique_id);  // before others can see it
  upstream(this, std::move(data));
}

torch::lazy::Value XLAGraphExecutor::GetRngSeed(const BackendDevice& device) {
  static const auto upstream = UpstreamFunction(&XLAGraphExecutor::GetRngSeed);
  const SeedOfThread seed(device);
  return upstream(this, device);
}

uint64_t XLAGraphExecutor::GetRunningSeed(const BackendDevice& device) {
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::GetRunningSeed);
  const SeedOfThread seed(device);
  return upstream(this, device);
}

void XLAGraphExecutor::SetRngSeed(const BackendDevice& device, uint64_t seed) {
  static const auto upstream = UpstreamFunction(&XLAGraphExecutor::SetRngSeed);
  const SeedOfThread own(device);
  upstream(this, device, seed);
}

torch::lazy::BackendDataPtr XLAGraphExecutor::GetBaseSeedData(
    const BackendDevice& device) {
  static const auto upstream =
      UpstreamFunction(&XLAGraphExecutor::GetBaseSeedData);
  const SeedOfThread seed(device);
  return upstream(this, device);
}

void XLAGraphExecutor::MarkStep(const BackendDevice& device, bool reset_scope) {
  static const auto upstream = UpstreamFunction(&XLAGraphExecutor::MarkStep);
  const SeedOfThread seed(device);
  upstream(this, device, reset_scope);
}

}  // namespace torch_xla
