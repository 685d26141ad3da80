#include "torch_xla_ext/csrc/graph/launch.h"

#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "torch_xla_ext/csrc/pjrt_shim/failed_start.h"
#include "torch_xla_ext/csrc/runtime_fixes/failures.h"
#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::graph {
namespace {

// Whether this thread is in a LazyStep that does not wait.
thread_local bool in_lazy_step = false;

struct GraphExecutor : torch::lazy::LazyGraphExecutor {
  using torch::lazy::LazyGraphExecutor::DeviceLockerArena;
};

template <typename DataPtr>
void TakeResults(const std::vector<DataPtr>& results, Launch* launch) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (const auto result = launch->results[i].lock()) {
      result->Assign(*results[i]);
    }
  }
}

void StartOnDevices(Launch* launch) {
  using Client = torch_xla::runtime::ComputationClient;
  auto* const client = torch_xla::runtime::GetComputationClientIfInitialized();
  const auto& computation =
      static_cast<const Client::Computation&>(*launch->computation);
  if (!launch->is_sharded) {
    TakeResults(client->ExecuteComputation(computation, launch->arguments,
                                           launch->device.toString(),
                                           Client::ExecuteComputationOptions()),
                launch);
    return;
  }
  static const auto& devices =
      *new std::vector<std::string>(client->GetLocalDevices());
  TakeResults(client->ExecuteReplicated(computation, launch->arguments, devices,
                                        Client::ExecuteReplicatedOptions()),
              launch);
}

// Destroys unused values when the program has been started or has failed.
class ClearUnused {
 public:
  explicit ClearUnused(const Launch& launch) : launch_(launch) {}
  ~ClearUnused() {
    if (launch_.unused == nullptr) return;
    for (const Donated& unused : *launch_.unused) {
      unused.data->Assign(*launch_.no_value);
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
  StartOnDevices(launch);
} catch (...) {
  CountLoss();
  throw;
}

bool Computes(const Launch& launch, const torch::lazy::BackendDataPtr& data) {
  return std::any_of(launch.results.begin(), launch.results.end(),
                     [&data](const auto& result) {
                       return !result.owner_before(data) &&
                              !data.owner_before(result);
                     });
}

// Called instead of executing the program if an earlier program has failed.
void Drop(const Launch& launch) {
  for (size_t k = 0; k < launch.written.size(); ++k) {
    if (const auto result = launch.results[k].lock()) {
      result->Assign(*launch.arguments[launch.written[k]]);
    }
  }
  const ClearUnused clear_unused(launch);
  CountLoss();
}

}  // namespace

DeviceLock LockDevice(const torch::lazy::BackendDevice& device) {
  return WaitUnlessLost([device] {
    return GraphExecutor::DeviceLockerArena::Get()->LockDevices({device});
  });
}

struct LaunchTicket::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  // Identifies the run of the thread that has the lock and starts programs; 0
  // if there is none.
  uint64_t run = 0;
  uint64_t num_runs = 0;
  size_t num_started = 0;  // in this run
  size_t num_places = 0;   // LaunchTickets of this run
  std::shared_ptr<Launch> current;
  std::deque<std::shared_ptr<Launch>> waiting;

  // Replaces changed.wait(*lock, ready), which needs a function of GCC 12's
  // libstdc++.
  template <typename Ready>
  void Wait(std::unique_lock<std::mutex>* lock, Ready ready) {
    while (!changed.wait_for(*lock, std::chrono::hours(1), ready)) {
    }
  }

  // Whether the condition holds for any program that has not been started.
  template <typename Predicate>
  bool Any(Predicate predicate) const {
    return (current != nullptr && predicate(*current)) ||
           std::any_of(waiting.begin(), waiting.end(),
                       [&](const auto& launch) { return predicate(*launch); });
  }

  void End() {
    run = 0;
    num_places = num_started = 0;
    changed.notify_all();
  }
};

LaunchTicket::Queue* LaunchTicket::QueueOf(
    const torch::lazy::BackendDevice& device) {
  // Never destroyed: threads still use them when the process exits.
  static auto& mutex = *new std::mutex;
  static auto& queues = *new std::map<std::pair<int, int64_t>, Queue>;
  const std::lock_guard<std::mutex> lock(mutex);
  return &queues[{device.type(), device.ordinal()}];
}

LaunchTicket::LaunchTicket(const torch::lazy::BackendDevice& device)
    : queue_(QueueOf(device)), lock_(LockDevice(device)) {}

std::optional<LaunchTicket> LaunchTicket::Behind(
    const torch::lazy::BackendDevice& device) {
  constexpr size_t kMaxWaiting = 2;
  // After this many programs, the thread lets others acquire the lock.
  constexpr size_t kMaxStarted = 64;
  Queue* const queue = QueueOf(device);
  const uint64_t run = WaitUnlessLost([queue]() -> uint64_t {
    std::unique_lock<std::mutex> lock(queue->mutex);
    queue->Wait(&lock, [queue] {
      return queue->run == 0 ||
             queue->waiting.size() + queue->num_places < kMaxWaiting;
    });
    if (queue->run == 0 || queue->num_started >= kMaxStarted) return 0;
    ++queue->num_places;
    return queue->run;
  });
  if (run == 0) return std::nullopt;
  return LaunchTicket(queue, run);
}

LaunchTicket::LaunchTicket(LaunchTicket&& other) noexcept
    : queue_(std::exchange(other.queue_, nullptr)),
      run_(other.run_),
      lock_(std::move(other.lock_)) {}

LaunchTicket::~LaunchTicket() {
  if (queue_ == nullptr || run_ == 0) return;
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  if (queue_->run != run_) return;
  --queue_->num_places;
  queue_->changed.notify_all();
}

bool LaunchTicket::WaitUntilReadable(const torch::lazy::BackendDevice& device,
                                     const torch::lazy::BackendDataPtr& data) {
  const auto computes = [&data](const Launch& launch) {
    return Computes(launch, data);
  };
  const auto donates = [&data](const Launch& launch) {
    return std::any_of(
        launch.written.begin(), launch.written.end(),
        [&](size_t argument) { return launch.arguments[argument] == data; });
  };
  Queue* const queue = QueueOf(device);
  std::unique_lock<std::mutex> lock(queue->mutex);
  queue->Wait(&lock, [&] { return queue->run == 0 || !queue->Any(computes); });
  // While the mutex is held, the run continues, and no other thread acquires
  // the device's lock.
  return queue->run != 0 && !queue->Any(donates) && data->HasValue();
}

bool LaunchTicket::IsBusy(const torch::lazy::BackendDevice& device) {
  Queue* const queue = QueueOf(device);
  const std::lock_guard<std::mutex> lock(queue->mutex);
  return queue->run != 0;
}

LazyStep::LazyStep(bool waits) { in_lazy_step = !waits; }

LazyStep::~LazyStep() { in_lazy_step = false; }

bool LazyStep::NeedNotWait(const torch::lazy::BackendDevice& device) {
  return in_lazy_step && LaunchTicket::IsBusy(device);
}

bool LaunchTicket::WillHaveValues(
    std::vector<torch::lazy::BackendDataPtr> data) const {
  using Result = std::weak_ptr<torch::lazy::BackendData>;
  std::vector<const Result*> pending;
  const auto is_before = [](const auto* one, const auto* other) {
    return one->owner_before(*other);
  };
  std::unique_lock<std::mutex> lock(queue_->mutex);
  queue_->Any([&pending](const Launch& launch) {
    for (const Result& result : launch.results) pending.push_back(&result);
    return false;
  });
  std::sort(pending.begin(), pending.end(), is_before);
  const auto is_pending = [&](const torch::lazy::BackendDataPtr& one) {
    return std::binary_search(pending.begin(), pending.end(), &one, is_before);
  };
  data.erase(std::remove_if(data.begin(), data.end(), is_pending), data.end());
  lock.unlock();
  return std::all_of(data.begin(), data.end(),
                     [](const auto& one) { return one->HasValue(); });
}

bool LaunchTicket::HasAllOthers(
    const std::vector<const torch::lazy::BackendDataPtr*>& data) const {
  std::unordered_map<const torch::lazy::BackendData*, int64_t> uses;
  for (const torch::lazy::BackendDataPtr* one : data) ++uses[one->get()];
  // Programs that enter or leave the queue remain counted in use_count()
  // meanwhile.
  const std::lock_guard<std::mutex> lock(queue_->mutex);
  queue_->Any([&uses](const Launch& launch) {
    for (const auto& argument : launch.arguments) {
      const auto found = uses.find(argument.get());
      if (found != uses.end()) ++found->second;
    }
    return false;
  });
  return std::all_of(data.begin(), data.end(), [&uses](const auto* one) {
    return one->use_count() <= uses.at(one->get());
  });
}

void LaunchTicket::StartAll(Queue* queue, std::shared_ptr<Launch> launch,
                            DeviceLock lock) {
  while (true) {
    std::deque<std::shared_ptr<Launch>> dropped;
    try {
      Execute(launch.get());
    } catch (...) {
      for (auto& unlocker : lock) {
        unlocker.SetStatus(std::current_exception());
      }
      const std::lock_guard<std::mutex> guard(queue->mutex);
      queue->current = nullptr;
      dropped.swap(queue->waiting);
      queue->End();
      for (const std::shared_ptr<Launch>& next : dropped) Drop(*next);
      launch = nullptr;  // before the lock
      return;
    }
    std::unique_lock<std::mutex> guard(queue->mutex);
    queue->current = nullptr;
    queue->changed.notify_all();
    guard.unlock();
    launch = nullptr;  // destroys data
    guard.lock();
    queue->Wait(&guard, [queue] {
      return !queue->waiting.empty() || queue->num_places == 0;
    });
    if (queue->waiting.empty()) {
      queue->End();
      return;
    }
    launch = queue->current = std::move(queue->waiting.front());
    queue->waiting.pop_front();
    ++queue->num_started;
    queue->changed.notify_all();
  }
}

void Start(LaunchTicket ticket, std::shared_ptr<Launch> launch) {
  LaunchTicket::Queue* const queue = ticket.queue_;
  std::unique_lock<std::mutex> guard(queue->mutex);
  if (ticket.run_ == 0) {
    queue->run = ++queue->num_runs;
    queue->num_started = 1;
    queue->current = launch;
    guard.unlock();
    torch_xla::thread::Schedule([queue, launch = std::move(launch),
                                 lock = std::make_shared<DeviceLock>(
                                     std::move(ticket.lock_))]() mutable {
      LaunchTicket::StartAll(queue, std::move(launch), std::move(*lock));
    });
  } else if (queue->run == ticket.run_) {
    queue->waiting.push_back(std::move(launch));
  } else {
    Drop(*launch);  // another one before it has failed
  }
}

void StartHere(LaunchTicket ticket, std::shared_ptr<Launch> launch) {
  const std::shared_ptr<Launch> own =
      std::move(launch);  // ends before `ticket`
  const pjrt_shim::FailAtStart fail_at_start;
  Execute(own.get());
}

}  // namespace torch_xla_ext::graph
