#include "torch_xla_ext/csrc/graph/launch.h"

#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>

#include <exception>
#include <utility>

#include "torch_xla_ext/csrc/pjrt_shim/failed_start.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::graph {
namespace {

struct GraphExecutor : torch::lazy::LazyGraphExecutor {
  using torch::lazy::LazyGraphExecutor::DeviceLockerArena;
};

void Execute(Launch* launch) {
  const std::vector<torch::lazy::BackendDataPtr> results =
      torch::lazy::getBackend()->ExecuteComputation(
          launch->computation, launch->arguments, launch->device);
  for (size_t i = 0; i < results.size(); ++i) {
    launch->results[i]->Assign(*results[i]);
  }
}

}  // namespace

DeviceLock LockDevice(const torch::lazy::BackendDevice& device) {
  return WaitUnlessLost([device] {
    return GraphExecutor::DeviceLockerArena::Get()->LockDevices({device});
  });
}

void Start(std::shared_ptr<Launch> launch) {
  torch_xla::thread::Schedule([launch = std::move(launch)] {
    try {
      Execute(launch.get());
    } catch (...) {
      for (auto& unlocker : launch->lock) {
        unlocker.SetStatus(std::current_exception());
      }
    }
  });
}

void StartHere(std::shared_ptr<Launch> launch) {
  const pjrt_shim::FailAtStart fail_at_start;
  Execute(launch.get());
}

}  // namespace torch_xla_ext::graph
