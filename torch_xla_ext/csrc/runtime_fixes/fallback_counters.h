// The counters of operators that run on the CPU.
//
// Upstream keeps them in a map without a lock, into which several threads
// inserted at once.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_FALLBACK_COUNTERS_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_FALLBACK_COUNTERS_H_

#include <mutex>

namespace torch_xla_ext {

// The lock of the counters, while it lives or until this thread calls Unlock().
// A thread that has called Unlock() may take it again: the operator may run
// others on the CPU.
class FallbackCounters {
 public:
  FallbackCounters();
  ~FallbackCounters();
  FallbackCounters(const FallbackCounters&) = delete;
  FallbackCounters& operator=(const FallbackCounters&) = delete;

  // Unlocks the newest of this thread, if there is one, before its end.
  static void Unlock();

 private:
  std::unique_lock<std::mutex> lock_;
  FallbackCounters* const outer_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_FALLBACK_COUNTERS_H_
