// Starts compiled programs in the same way as torch_xla: in one of its threads,
// which holds the device's lock until the program has been started. Programs
// that follow each other are queued: their thread keeps the lock for the next
// one, so that nothing else comes in between, and no thread waits for it.
#ifndef TORCH_XLA_EXT_CSRC_GRAPH_LAUNCH_H_
#define TORCH_XLA_EXT_CSRC_GRAPH_LAUNCH_H_

#include <torch/csrc/lazy/backend/backend_data.h>
#include <torch/csrc/lazy/backend/lowering_context.h>
#include <torch/csrc/lazy/core/util.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::graph {

// Unlocks the device when destroyed.
using DeviceLock = std::vector<torch::lazy::ExceptionCleanup>;

// Waits until the previous program has been started, and locks the device.
// Throws that program's error.
DeviceLock LockDevice(const torch::lazy::BackendDevice& device);

struct Launch;

// The right to start the next program of a device: its lock, or a place in the
// queue of the thread that has it. That thread waits for the program while a
// place exists, so its owner must not wait for the lock.
class LaunchTicket {
 public:
  // Like LockDevice.
  explicit LaunchTicket(const torch::lazy::BackendDevice& device);
  // A place behind programs that have not been started yet. Returns nothing if
  // there are none, one has failed, or others should have the lock. Waits while
  // there are many.
  static std::optional<LaunchTicket> Behind(
      const torch::lazy::BackendDevice& device);
  LaunchTicket(LaunchTicket&& other) noexcept;
  LaunchTicket& operator=(LaunchTicket&&) = delete;
  ~LaunchTicket();

  // Waits until no program that is being started computes this data. Returns
  // whether it may be read without the device's lock then: others are being
  // started, none of them donates it, and it has a value. If none are, nobody
  // waits for the lock for long.
  static bool WaitUntilReadable(const torch::lazy::BackendDevice& device,
                                const torch::lazy::BackendDataPtr& data);

  // Whether programs of the device are queued or being started.
  static bool IsBusy(const torch::lazy::BackendDevice& device);

  // Whether all of this data has values, or will have them when the programs
  // before have been started.
  bool WillHaveValues(std::vector<torch::lazy::BackendDataPtr> data) const;
  // Whether only they refer to this data, as their arguments, besides these
  // pointers.
  bool HasAllOthers(
      const std::vector<const torch::lazy::BackendDataPtr*>& data) const;

 private:
  friend void Start(LaunchTicket ticket, std::shared_ptr<Launch> launch);
  struct Queue;

  LaunchTicket(Queue* queue, uint64_t run) : queue_(queue), run_(run) {}
  static Queue* QueueOf(const torch::lazy::BackendDevice& device);
  static void StartAll(Queue* queue, std::shared_ptr<Launch> launch,
                       DeviceLock lock);

  Queue* queue_;
  uint64_t run_ = 0;  // of the queue; 0 with the lock
  DeviceLock lock_;
};

// Lives while this thread computes the pending tensors of a device, in
// torch_xla.sync().
class LazyStep {
 public:
  explicit LazyStep(bool waits);
  ~LazyStep();
  LazyStep(const LazyStep&) = delete;
  LazyStep& operator=(const LazyStep&) = delete;
  // Whether this thread is in one that does not wait, and programs of the
  // device are being started. If no tensor is pending it may return then.
  static bool NeedNotWait(const torch::lazy::BackendDevice& device);
};

// The data of a written parameter before a run.
struct Donated {
  torch::lazy::BackendDataPtr data;
  bool is_reusable;  // made for a result
};

struct Launch {
  using Data = torch_xla::runtime::ComputationClient::Data;

  torch::lazy::BackendDevice device;
  torch::lazy::ComputationPtr computation;
  bool is_sharded = false;
  // All have values when the earlier programs have been started.
  std::vector<std::shared_ptr<Data>> arguments;
  // The arguments of which the first results are the new values.
  std::vector<size_t> written;
  // They get their values when the program has been started. Until then, only
  // the holder of the device's lock may access them.
  std::vector<std::weak_ptr<torch::lazy::BackendData>> results;
  // They lose their values when the program has been started or has failed.
  // Null if there are none.
  std::shared_ptr<const std::vector<Donated>> unused;
  torch::lazy::BackendDataPtr no_value;
};

// Returns at once. If the program fails, the next LockDevice throws its error,
// and the results stay without values. Programs behind it are not started: what
// they would have written keeps its values, and other results have none.
void Start(LaunchTicket ticket, std::shared_ptr<Launch> launch);

// Returns when the program has been started, in this thread, and throws its
// error, also one that the device has not been given the program for. `ticket`
// has the device's lock.
void StartHere(LaunchTicket ticket, std::shared_ptr<Launch> launch);

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_LAUNCH_H_
