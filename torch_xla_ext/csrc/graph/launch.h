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

// The right to start the next program of a device: the device's lock, or a
// place in the queue of the thread that holds the lock. That thread waits for
// the program of each place, so a place's owner must not wait for the lock.
class LaunchTicket {
 public:
  // Like LockDevice.
  explicit LaunchTicket(const torch::lazy::BackendDevice& device);
  // A place behind programs that have not been started yet. Returns nothing if
  // there are no such programs, if one has failed, or if it is another thread's
  // turn to get the lock. Waits while many programs are queued.
  static std::optional<LaunchTicket> Behind(
      const torch::lazy::BackendDevice& device);
  LaunchTicket(LaunchTicket&& other) noexcept;
  LaunchTicket& operator=(LaunchTicket&&) = delete;
  ~LaunchTicket();

  // Waits until no program that is being started computes this data. Then
  // returns whether the data may be read without the device's lock: other
  // programs are being started, none of them donates the data, and it has a
  // value. If no programs are being started, the lock is soon free.
  static bool WaitUntilReadable(const torch::lazy::BackendDevice& device,
                                const torch::lazy::BackendDataPtr& data);

  // Whether programs of the device are queued or being started.
  static bool IsBusy(const torch::lazy::BackendDevice& device);

  // Whether all of this data has values, or will have them when the earlier
  // programs have been started.
  bool WillHaveValues(std::vector<torch::lazy::BackendDataPtr> data) const;
  // Whether nothing but these pointers and the arguments of earlier programs
  // refers to this data.
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
  uint64_t run_ = 0;  // of the queue; 0 if this has the lock
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
  // Whether this thread is in a torch_xla.sync() that need not wait, and
  // programs of the device are being started. If no tensor is pending, it may
  // return then.
  static bool NeedNotWait(const torch::lazy::BackendDevice& device);
};

// The data of a written parameter before a run.
struct Donated {
  torch::lazy::BackendDataPtr data;
  bool is_reusable;  // allocated for a result
};

struct Launch {
  using Data = torch_xla::runtime::ComputationClient::Data;

  torch::lazy::BackendDevice device;
  torch::lazy::ComputationPtr computation;
  bool is_sharded = false;
  // All arguments have values when the earlier programs have been started.
  std::vector<std::shared_ptr<Data>> arguments;
  // The arguments whose new values are the first results.
  std::vector<size_t> written;
  // The results have values when the program has been started. Until then, only
  // the holder of the device's lock may access them.
  std::vector<std::weak_ptr<torch::lazy::BackendData>> results;
  // Data that loses its value when the program has been started or has failed.
  // Null if there is none.
  std::shared_ptr<const std::vector<Donated>> unused;
  torch::lazy::BackendDataPtr no_value;
};

// Starts the program and returns at once. If the program fails, the next
// LockDevice throws its error, and the results stay without values. Programs
// behind it are not started: tensors that they would have written keep their
// values, and their other results have none.
void Start(LaunchTicket ticket, std::shared_ptr<Launch> launch);

// Starts the program in this thread, and throws its error, also if the device
// has not received the program. `ticket` must have the device's lock.
void StartHere(LaunchTicket ticket, std::shared_ptr<Launch> launch);

}  // namespace torch_xla_ext::graph

#endif  // TORCH_XLA_EXT_CSRC_GRAPH_LAUNCH_H_
