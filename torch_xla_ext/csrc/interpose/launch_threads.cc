// Interposes on ThreadPool::ParallelFor, by which ExecuteReplicated prepares
// the arguments of a program for several devices, and its results: one thread
// does it. A buffer takes some 20 ns, for which upstream's estimate is 10 us;
// waking a thread takes 5 to 50 us.
//
// This works because the upstream binary calls the function through its PLT.
// The upstream function is called from here.
#include "torch_xla_ext/csrc/interpose/launch_threads.h"

#include <functional>

#include "torch_xla_ext/csrc/interpose/upstream_function.h"

#define PARALLEL_FOR \
  "_ZN3tsl6thread10ThreadPool11ParallelForEllRKSt8functionIFvllEE"

namespace torch_xla_ext {
namespace {

thread_local bool few_threads = false;

// Upstream's estimate for one buffer, in cycles, and the most buffers that one
// thread prepares.
constexpr long kBufferCost = 10000;
constexpr long kFewBuffers = 8192;

}  // namespace

FewThreads::FewThreads() : before_(few_threads) { few_threads = true; }
FewThreads::~FewThreads() { few_threads = before_; }

extern "C" void ParallelFor(
    void* pool, long total, long cost_of_one,
    const std::function<void(long, long)>& function) __asm__(PARALLEL_FOR);

extern "C" void ParallelFor(void* pool, long total, long cost_of_one,
                            const std::function<void(long, long)>& function) {
  static const auto upstream =
      torch_xla::UpstreamFunction(&ParallelFor, PARALLEL_FOR);
  if (few_threads && total > 0 &&
      cost_of_one <= kFewBuffers * kBufferCost / total) {
    function(0, total);
  } else {
    upstream(pool, total, cost_of_one, function);
  }
}

}  // namespace torch_xla_ext
