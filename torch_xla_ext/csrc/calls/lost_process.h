// The other processes of a program, those that torchrun started with this one,
// and what follows when one is lost.
//
// A device waits for ever for what a lost process was to send. XLA's
// coordination client notices the loss, and its default is to end the process
// that it runs in. Here who waits for a device gets an exception instead.
#ifndef TORCH_XLA_EXT_CSRC_CALLS_LOST_PROCESS_H_
#define TORCH_XLA_EXT_CSRC_CALLS_LOST_PROCESS_H_

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

namespace torch_xla_ext {

// After how many seconds without a heartbeat a process is taken for lost:
// DIST_SERVICE_HEARTBEAT_INTERVAL_IN_SEC (10) times
// DIST_SERVICE_MAX_MISSING_HEARTBEATS (10).
int HeartbeatTimeout();

// There are other processes: from now on WaitUnlessLost looks out for a loss.
void WatchProcesses();
bool ProcessesWatched();

// Notes that a process is lost, and why, in the words of XLA's status. Does not
// wait; only the first call has an effect.
//
// This process then ends without what waits for devices. If nobody is told
// within TORCH_XLA_EXT_EXIT_TIMEOUT seconds (60), it ends itself with a message:
// it waits for something that no exception can end.
void SetLostProcess(const std::string& status);

// The error's text; empty, as long as no process is lost.
std::string LostProcess();
// Throws std::runtime_error with that text, if there is one.
void ThrowLostProcess();

// This process begins to end: if another is lost, its end takes ten seconds at
// most, whatever it waits for. Returns whether one is lost.
bool EndIfLost();

// Runs `job` in another thread, and waits for it. Throws as ThrowLostProcess if
// a process is lost before or meanwhile: then the job goes on for itself.
void RunUnlessLost(std::function<void()> job);

// Returns wait(), or throws as RunUnlessLost. `wait` must hold what it uses.
template <typename Wait>
auto WaitUnlessLost(Wait wait) -> decltype(wait()) {
  if (!ProcessesWatched()) return wait();
  using Task = std::packaged_task<decltype(wait())()>;
  auto task = std::make_shared<Task>(std::move(wait));
  auto result = task->get_future();
  RunUnlessLost([task] { (*task)(); });
  return result.get();
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_CALLS_LOST_PROCESS_H_
