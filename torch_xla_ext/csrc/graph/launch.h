// Starts a compiled program in the same way as torch_xla: in one of its
// threads, which holds the device's lock until the program has been started.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_LAUNCH_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_LAUNCH_H_

#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/backend/lowering_context.h>
#include <torch/csrc/lazy/core/util.h>

#include <memory>
#include <vector>

namespace torch_xla_ext::graph {

// Unlocks the device when destroyed.
using DeviceLock = std::vector<torch::lazy::ExceptionCleanup>;

// Waits until the previous program has been started, and locks the device.
// Throws that program's error.
DeviceLock LockDevice(const torch::lazy::BackendDevice& device);

struct Launch {
  DeviceLock lock;  // first, so that it is the last to be destroyed
  torch::lazy::BackendDevice device;
  torch::lazy::ComputationPtr computation;
  bool is_sharded = false;
  std::vector<torch::lazy::BackendDataPtr> arguments;  // all have values
  // They get their values when the program has been started. Until then, only
  // the holder of the device's lock may access them.
  std::vector<torch::lazy::BackendDataPtr> results;
  // They lose their values when the program has been started or has failed.
  std::vector<torch::lazy::BackendDataPtr> unused;
  torch::lazy::BackendDataPtr no_value;
};

// Returns at once. If the program fails, the next LockDevice throws its error,
// and the results stay without values.
void Start(std::shared_ptr<Launch> launch);

// Returns when the program has been started, in this thread, and throws its
// error, also one that the device has not been given the program for.
void StartHere(std::shared_ptr<Launch> launch);

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_LAUNCH_H_
