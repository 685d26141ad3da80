// Lets one thread trace a function while other threads compute tensors.
//
// torch_xla.sync() computes all live tensors, and begins new random numbers. In
// another thread it would end a trace in the middle: what the function has
// traced so far would be constants of the rest, and tensors that it has written
// to would have new data.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_THREAD_TRACE_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_THREAD_TRACE_H_

#include <torch/csrc/lazy/backend/backend_device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// The trace of a captured or compiled function in this thread, and in
// autograd's threads while they work for it. Other threads' syncs ignore the
// tensors that the trace makes or writes to, and the trace has its own random
// seeds.
class ThreadTrace {
 public:
  struct State;

  ThreadTrace();
  ~ThreadTrace();
  ThreadTrace(const ThreadTrace&) = delete;
  ThreadTrace& operator=(const ThreadTrace&) = delete;

  // Ends the trace, in the thread that began it. `keeps` says whether its
  // tensors stay pending and its random numbers count as drawn, as if the
  // function had only run.
  void End(bool keeps);

 private:
  std::shared_ptr<State> state_;
};

// Called before a tensor gets operations: it belongs to the trace of this
// thread, if there is one.
void NoteTraced(int64_t tensor_id);

// The tensors without those of other threads' traces; nothing if there are
// none. The caller has the TensorLock.
std::optional<std::vector<torch_xla::XLATensorPtr>> WithoutOthersTraces(
    const std::vector<torch_xla::XLATensorPtr>& tensors);

// While it lives, the device's random seed is that of this thread's trace, if
// there is one.
class SeedOfThread {
 public:
  explicit SeedOfThread(const torch::lazy::BackendDevice& device);
  ~SeedOfThread();
  SeedOfThread(const SeedOfThread&) = delete;
  SeedOfThread& operator=(const SeedOfThread&) = delete;

 private:
  struct Exchange;

  TensorLock lock_;
  std::unique_ptr<Exchange> exchange_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_THREAD_TRACE_H_
