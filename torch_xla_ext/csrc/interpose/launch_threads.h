// Speeds up the thread that prepares a program for several devices.
#ifndef TORCH_XLA_EXT_CSRC_INTERPOSE_LAUNCH_THREADS_H_
#define TORCH_XLA_EXT_CSRC_INTERPOSE_LAUNCH_THREADS_H_

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"

namespace torch_xla_ext {

// Prefetches into the processor's caches the fields of the arguments' shards
// that ExecuteReplicated reads. It follows three pointers from each argument to
// a buffer, and would wait for memory at each, because the last program has
// displaced them from the caches.
void FetchShards(
    absl::Span<const torch_xla::runtime::ComputationClient::DataPtr> arguments);

// While it lives, ThreadPool::ParallelFor in this thread wakes no other threads
// for few buffers.
class FewThreads {
 public:
  FewThreads();
  ~FewThreads();
  FewThreads(const FewThreads&) = delete;
  FewThreads& operator=(const FewThreads&) = delete;

 private:
  bool before_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_INTERPOSE_LAUNCH_THREADS_H_
