// What an execution that failed leaves behind: its error, reported once, and
// results without a value.
//
// 1. torch_xla hands the error of an execution to whoever comes first: to the
// caller that waits for the execution, through MultiWait::Wait, or to the next
// step on the device, through the device's lock. It gives it to both, though:
// after an exception that the caller has handled, the next step, which has
// nothing to do with it, fails with the same text.
//
// The stock binary calls MultiWait::Wait in two places, both on the member of
// an XLAGraphExecutor::Async that its caller holds. When that throws, the error
// has its reader; here it is taken out of the device locks' hands.
//
// 2. On the CPU the results of such an execution have no buffer. A program that
// takes one of them as an argument ends the process with a segmentation fault.
// The arguments of every execution are checked here first.
#include <dlfcn.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/multi_wait.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/front/abi/torch_xla.h"
#include "torch_xla_ext/csrc/front/without_gil.h"

namespace torch::lazy {
namespace {

struct AsyncAccess : LazyGraphExecutor {
  using LazyGraphExecutor::Async;
};
using Async = AsyncAccess::Async;

// The Async that `wait` is the member of.
Async* Owner(MultiWait* wait) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // single inheritance
  constexpr size_t kOffset = offsetof(Async, mwait);
#pragma GCC diagnostic pop
  return reinterpret_cast<Async*>(reinterpret_cast<char*>(wait) - kOffset);
}

}  // namespace

void MultiWait::Wait() {
  static const auto stock = reinterpret_cast<void (*)(MultiWait*)>(
      dlsym(RTLD_NEXT, "_ZN5torch4lazy9MultiWait4WaitEv"));
  const torch_xla_ext::WithoutGil without_gil;
  try {
    stock(this);
  } catch (...) {
    for (ExceptionCleanup& unlocker : Owner(this)->unlocker) {
      unlocker.SetStatus(nullptr);
    }
    throw;
  }
}

}  // namespace torch::lazy

namespace torch_xla::runtime {
namespace {

void CheckArguments(absl::Span<const ComputationClient::DataPtr> arguments) {
  size_t index = 0;
  for (const ComputationClient::DataPtr& argument : arguments) {
    if (!argument->HasValue()) {
      throw std::runtime_error(
          "argument " + std::to_string(index) + " of a program on " +
          argument->device().toString() +
          " has no value: the program that was to compute it failed, and its "
          "error came before this one");
    }
    ++index;
  }
}

}  // namespace

std::vector<ComputationClient::DataPtr>
PjRtComputationClient::ExecuteComputation(
    const ComputationClient::Computation& computation,
    absl::Span<const ComputationClient::DataPtr> arguments,
    const std::string& device,
    const ComputationClient::ExecuteComputationOptions& options) {
  using Stock = std::vector<ComputationClient::DataPtr> (*)(
      PjRtComputationClient*, const ComputationClient::Computation&,
      absl::Span<const ComputationClient::DataPtr>, const std::string&,
      const ComputationClient::ExecuteComputationOptions&);
  static const auto stock = reinterpret_cast<Stock>(dlsym(
      RTLD_NEXT,
      "_ZN9torch_xla7runtime21PjRtComputationClient18ExecuteComputationERKNS0_"
      "17ComputationClient11ComputationEN4absl12lts_202308024SpanIKSt10shared_"
      "ptrINS2_4DataEEEERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
      "RKNS2_25ExecuteComputationOptionsE"));
  CheckArguments(arguments);
  const torch_xla_ext::WithoutGil without_gil;
  return stock(this, computation, arguments, device, options);
}

std::vector<ComputationClient::DataPtr>
PjRtComputationClient::ExecuteReplicated(
    const ComputationClient::Computation& computation,
    absl::Span<const ComputationClient::DataPtr> arguments,
    absl::Span<const std::string> devices,
    const ComputationClient::ExecuteReplicatedOptions& options) {
  using Stock = std::vector<ComputationClient::DataPtr> (*)(
      PjRtComputationClient*, const ComputationClient::Computation&,
      absl::Span<const ComputationClient::DataPtr>,
      absl::Span<const std::string>,
      const ComputationClient::ExecuteReplicatedOptions&);
  static const auto stock = reinterpret_cast<Stock>(dlsym(
      RTLD_NEXT,
      "_ZN9torch_xla7runtime21PjRtComputationClient17ExecuteReplicatedERKNS0_17"
      "ComputationClient11ComputationEN4absl12lts_202308024SpanIKSt10shared_"
      "ptrINS2_4DataEEEENS8_IKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIc"
      "EEEEERKNS2_24ExecuteReplicatedOptionsE"));
  CheckArguments(arguments);
  const torch_xla_ext::WithoutGil without_gil;
  return stock(this, computation, arguments, devices, options);
}

}  // namespace torch_xla::runtime
