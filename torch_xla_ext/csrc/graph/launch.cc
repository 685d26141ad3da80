#include "torch_xla_ext/csrc/graph/launch.h"

#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>

#include <exception>
#include <string>
#include <utility>

#include "torch_xla_ext/csrc/pjrt_shim/failed_start.h"
#include "torch_xla_ext/csrc/runtime_fixes/failures.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::graph {
namespace {

struct GraphExecutor : torch::lazy::LazyGraphExecutor {
  using torch::lazy::LazyGraphExecutor::DeviceLockerArena;
};

template <typename DataPtr>
void TakeResults(const std::vector<DataPtr>& results, Launch* launch) {
  for (size_t i = 0; i < results.size(); ++i) {
    launch->results[i]->Assign(*results[i]);
  }
}

void ExecuteSharded(Launch* launch) {
  using Client = torch_xla::runtime::ComputationClient;
  auto* const client = torch_xla::runtime::GetComputationClientIfInitialized();
  static const auto& devices =
      *new std::vector<std::string>(client->GetLocalDevices());
  std::vector<Client::DataPtr> arguments;
  arguments.reserve(launch->arguments.size());
  for (const torch::lazy::BackendDataPtr& argument : launch->arguments) {
    arguments.push_back(std::static_pointer_cast<Client::Data>(argument));
  }
  const auto& computation =
      static_cast<const Client::Computation&>(*launch->computation);
  TakeResults(client->ExecuteReplicated(computation, arguments, devices,
                                        Client::ExecuteReplicatedOptions()),
              launch);
}

// Destroys values that are not used any more, when the program has been started
// or has failed.
class ClearUnused {
 public:
  explicit ClearUnused(const Launch& launch) : launch_(launch) {}
  ~ClearUnused() {
    for (const torch::lazy::BackendDataPtr& data : launch_.unused) {
      data->Assign(*launch_.no_value);
    }
  }
  ClearUnused(const ClearUnused&) = delete;
  ClearUnused& operator=(const ClearUnused&) = delete;

 private:
  const Launch& launch_;
};

void Execute(Launch* launch) try {
  const ClearUnused clear_unused(*launch);
  const CheckedExecution checked;
  if (launch->is_sharded) {
    ExecuteSharded(launch);
  } else {
    TakeResults(torch::lazy::getBackend()->ExecuteComputation(
                    launch->computation, launch->arguments, launch->device),
                launch);
  }
} catch (...) {
  CountLoss();
  throw;
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
