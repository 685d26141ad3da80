// Handles the loss of one of the other processes of a program, which torchrun
// started together with this one.
//
// A device waits forever for data that a lost process should have sent. XLA's
// coordination client notices the loss, and by default aborts the process that
// it runs in. Here, a thread that waits for a device receives an exception
// instead.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_LOST_PROCESS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_LOST_PROCESS_H_

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

namespace torch_xla_ext {

// The number of seconds without a heartbeat after which a process counts as
// lost: DIST_SERVICE_HEARTBEAT_INTERVAL_IN_SEC (10) times
// DIST_SERVICE_MAX_MISSING_HEARTBEATS (10).
int HeartbeatTimeout();

// Declares that there are other processes: from now on WaitUnlessLost detects
// their loss.
void WatchProcesses();
bool ProcessesWatched();

// Records that a process is lost, with XLA's status as the reason. Does not
// wait; only the first call has an effect.
//
// At exit, this process then skips everything that waits for devices. If no
// thread receives the exception within TORCH_XLA_EXT_EXIT_TIMEOUT seconds (60),
// the process exits with a message, because something that no exception can
// interrupt blocks it.
void SetLostProcess(const std::string& status);

// The error's text; empty as long as no process is lost.
std::string LostProcess();
// Throws std::runtime_error with that text, if there is one.
void ThrowLostProcess();

// Declares that this process begins to exit. If another process is lost,
// returns true, and the exit takes at most ten seconds.
bool EndIfLost();

// Runs `job` in another thread and waits for it. Throws like ThrowLostProcess
// if a process is lost before or during the wait; the job then continues in its
// thread.
void RunUnlessLost(std::function<void()> job);

// Returns wait(), or throws like RunUnlessLost. `wait` must own everything that
// it uses.
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

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_LOST_PROCESS_H_
