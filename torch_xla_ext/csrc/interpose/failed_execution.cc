// Interposes on MultiWait::Wait and the two functions that execute programs: a
// failed execution reports its error once, and using its results is an error
// (runtime_fixes/failures.h). An argument on another device is an error of one
// sentence.
//
// This works because the upstream binary calls MultiWait::Wait in two places
// only, both on the member of an XLAGraphExecutor::Async that its caller holds,
// and PjRtComputationClient's functions through its vtable, which refers to
// them by their symbols. The upstream functions are called from here.
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/multi_wait.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/launch_threads.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"
#include "torch_xla_ext/csrc/runtime_fixes/devices.h"
#include "torch_xla_ext/csrc/runtime_fixes/failures.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"
#include "torch_xla_ext/csrc/runtime_fixes/without_gil.h"

namespace torch::lazy {
namespace {

struct AsyncAccess : LazyGraphExecutor {
  using LazyGraphExecutor::Async;
};
using Async = AsyncAccess::Async;

// The Async that `wait` is a member of.
Async* Owner(MultiWait* wait) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // single inheritance
  constexpr size_t kOffset = offsetof(Async, mwait);
#pragma GCC diagnostic pop
  return reinterpret_cast<Async*>(reinterpret_cast<char*>(wait) - kOffset);
}

// Waits for at most `seconds`; returns whether the wait is over.
bool WaitFor(MultiWait* wait, double seconds) {
  try {
    wait->Wait(seconds);
  } catch (const std::runtime_error& error) {
    if (std::string(error.what()) != "Timeout") throw;
    return false;
  }
  return true;
}

}  // namespace

void MultiWait::Wait() {
  static const auto upstream = torch_xla::UpstreamFunction(
      static_cast<void (MultiWait::*)()>(&MultiWait::Wait));
  torch_xla_ext::WaitAndTakeError(
      [this] {
        if (!torch_xla_ext::ProcessesWatched()) return upstream(this);
        // Not WaitUnlessLost, whose job continues after an exception: this
        // object belongs to the caller and does not outlive the exception.
        while (!WaitFor(this, /*seconds=*/0.5)) {
          torch_xla_ext::ThrowLostProcess();
        }
      },
      &Owner(this)->unlocker);
}

}  // namespace torch::lazy

namespace torch_xla::runtime {

std::vector<ComputationClient::DataPtr>
PjRtComputationClient::ExecuteComputation(
    const ComputationClient::Computation& computation,
    absl::Span<const ComputationClient::DataPtr> arguments,
    const std::string& device,
    const ComputationClient::ExecuteComputationOptions& options) {
  static const auto upstream =
      UpstreamFunction(&PjRtComputationClient::ExecuteComputation);
  torch_xla_ext::ThrowLostProcess();
  torch_xla_ext::CheckHaveValues(arguments);
  const torch_xla_ext::WithoutGil without_gil;
  try {
    return upstream(this, computation, arguments, device, options);
  } catch (const std::runtime_error&) {
    for (const ComputationClient::DataPtr& argument : arguments) {
      torch_xla_ext::CheckIsOn(device, argument->device().toString());
    }
    throw;
  }
}

std::vector<ComputationClient::DataPtr>
PjRtComputationClient::ExecuteReplicated(
    const ComputationClient::Computation& computation,
    absl::Span<const ComputationClient::DataPtr> arguments,
    absl::Span<const std::string> devices,
    const ComputationClient::ExecuteReplicatedOptions& options) {
  static const auto upstream =
      UpstreamFunction(&PjRtComputationClient::ExecuteReplicated);
  torch_xla_ext::ThrowLostProcess();
  torch_xla_ext::CheckHaveValues(arguments);
  const torch_xla_ext::WithoutGil without_gil;
  const torch_xla_ext::FewThreads few_threads;
  torch_xla_ext::FetchShards(arguments);
  return upstream(this, computation, arguments, devices, options);
}

}  // namespace torch_xla::runtime
