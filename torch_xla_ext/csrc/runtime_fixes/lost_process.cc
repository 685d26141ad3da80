#include "torch_xla_ext/csrc/runtime_fixes/lost_process.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

namespace torch_xla_ext {
namespace {

// A thread that runs jobs one after another.
struct Worker {
  std::function<void()> job;
  std::shared_ptr<bool> done;  // of the job
  std::condition_variable wake;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;  // a job is done, or a process lost
  std::string lost;
  bool told = false;
  std::vector<Worker*> idle;
};

// Never destroyed: threads still use it when the process exits.
State& TheState() {
  static State& state = *new State;
  return state;
}

std::atomic<bool> watched{false};

int Setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  const int value = text == nullptr ? 0 : std::atoi(text);
  return value > 0 ? value : otherwise;
}

// XLA's status names the lost tasks like "/job:jax_worker/replica:0/task:1". It
// names none if the connection to the coordinator is lost.
std::string Text(const std::string& status) {
  static constexpr std::string_view kTask = "/task:";
  std::set<int> ranks;
  for (size_t at = status.find(kTask); at != std::string::npos;
       at = status.find(kTask, at)) {
    at += kTask.size();
    const bool is_number = '0' <= status[at] && status[at] <= '9';
    if (is_number) ranks.insert(std::atoi(&status[at]));
  }
  std::string who;
  for (const int rank : ranks) {
    who += (who.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  if (who.empty()) who = "rank 0, or the connection to it,";
  return who +
         " is lost, and this process cannot continue without it: restart "
         "all processes, from a checkpoint if there is one (torchrun "
         "--max-restarts does this). The lost process's own output shows why "
         "it exited. XLA's coordinator: " +
         status;
}

// Replaces condition->wait(*lock, ready), which needs a function of GCC 12's
// libstdc++: with it, the wheel would not run with an older one.
template <typename Ready>
void Wait(std::condition_variable* condition,
          std::unique_lock<std::mutex>* lock, Ready ready) {
  while (!condition->wait_for(*lock, std::chrono::hours(1), ready)) {
  }
}

void ThrowIfLost(State* state) {
  if (state->lost.empty()) return;
  state->told = true;
  throw std::runtime_error(state->lost);
}

void Work(Worker* worker) {
  State& state = TheState();
  std::unique_lock<std::mutex> lock(state.mutex);
  while (true) {
    Wait(&worker->wake, &lock, [&] { return worker->job != nullptr; });
    lock.unlock();
    worker->job();
    worker->job = nullptr;
    lock.lock();
    *worker->done = true;
    state.idle.push_back(worker);
    state.changed.notify_all();
  }
}

}  // namespace

int HeartbeatTimeout() {
  return Setting("DIST_SERVICE_HEARTBEAT_INTERVAL_IN_SEC", 10) *
         Setting("DIST_SERVICE_MAX_MISSING_HEARTBEATS", 10);
}

void WatchProcesses() { watched = true; }

bool ProcessesWatched() { return watched; }

void SetLostProcess(const std::string& status) {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (!state.lost.empty()) return;
  state.lost = Text(status);
  state.changed.notify_all();
  // Exit handlers run in reverse order of registration. So this handler runs
  // before those that destroy parts of the client, which threads that wait for
  // the device still use.
  on_exit(
      [](int exit_status, void*) {
        std::fflush(nullptr);
        _exit(exit_status);
      },
      nullptr);
  std::thread([&state] {
    std::this_thread::sleep_for(
        std::chrono::seconds(Setting("TORCH_XLA_EXT_EXIT_TIMEOUT", 60)));
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (state.told) return;
    std::fprintf(stderr, "torch_xla_ext: this process exits: %s\n",
                 state.lost.c_str());
    _exit(1);
  }).detach();
}

std::string LostProcess() {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.lost;
}

void ThrowLostProcess() {
  if (!ProcessesWatched()) return;
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  ThrowIfLost(&state);
}

bool EndIfLost() {
  if (LostProcess().empty()) return false;
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(10));
    _exit(1);
  }).detach();
  return true;
}

void RunUnlessLost(std::function<void()> job) {
  State& state = TheState();
  std::unique_lock<std::mutex> lock(state.mutex);
  ThrowIfLost(&state);
  Worker* worker;
  if (state.idle.empty()) {
    worker = new Worker;
    std::thread(Work, worker).detach();
  } else {
    worker = state.idle.back();
    state.idle.pop_back();
  }
  const auto done = std::make_shared<bool>(false);
  worker->job = std::move(job);
  worker->done = done;
  worker->wake.notify_one();
  Wait(&state.changed, &lock, [&] { return *done || !state.lost.empty(); });
  if (!*done) ThrowIfLost(&state);
}

}  // namespace torch_xla_ext
