// Interposes on ThreadPool::ParallelFor, with which ExecuteReplicated prepares
// the arguments and results of a program for several devices: here one thread
// does so. A buffer takes some 20 ns, not 10 us as upstream estimates; waking a
// thread takes 5 to 50 us.
//
// This works because the upstream binary calls the function through its PLT.
// The upstream function is called from here.
#include "torch_xla_ext/csrc/interpose/launch_threads.h"

#include <dlfcn.h>

#include <functional>
#include <memory>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/layout.h"
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

using torch_xla::runtime::ComputationClient;

void Fetch(const void* object, ptrdiff_t offset = 0) {
  __builtin_prefetch(static_cast<const char*>(object) + offset);
}

template <typename T>
const T& At(const void* object, size_t offset) {
  return *reinterpret_cast<const T*>(static_cast<const char*>(object) + offset);
}

// Whether the data's class is the one with shards.
bool IsSharded(const void* data) {
  // The vtable begins two words before its functions.
  static const auto* const vtable = static_cast<const char*>(dlsym(
      RTLD_NEXT,
      "_ZTVN9torch_xla7runtime21PjRtComputationClient15PjRtShardedDataE"));
  return vtable != nullptr &&
         At<const char*>(data, 0) == vtable + 2 * sizeof(void*);
}

}  // namespace

void FetchShards(absl::Span<const ComputationClient::DataPtr> arguments) {
  using Shards = std::vector<std::shared_ptr<void>>;
  // The control block that std::make_shared puts before an object.
  constexpr ptrdiff_t kCounts = -16;
  for (const auto& argument : arguments) {
    Fetch(argument.get(), kCounts);
    Fetch(argument.get());
    Fetch(argument.get(), layout::kShardsOffset);
  }
  for (const auto& argument : arguments) {
    if (!IsSharded(argument.get())) return;
    Fetch(At<Shards>(argument.get(), layout::kShardsOffset).data());
  }
  for (const auto& argument : arguments) {
    for (const auto& shard :
         At<Shards>(argument.get(), layout::kShardsOffset)) {
      Fetch(shard.get(), kCounts);
      Fetch(shard.get());
      Fetch(shard.get(), layout::kBufferOffset);
    }
  }
  for (const auto& argument : arguments) {
    for (const auto& shard :
         At<Shards>(argument.get(), layout::kShardsOffset)) {
      Fetch(At<const void*>(shard.get(), layout::kBufferOffset));
    }
  }
}

FewThreads::FewThreads() : before_(few_threads) { few_threads = true; }
FewThreads::~FewThreads() { few_threads = before_; }

extern "C" void ParallelFor(
    void* pool, long total, long cost_of_one,
    const std::function<void(long, long)>& function) __asm__(PARALLEL_FOR);

extern "C" void ParallelFor(void* pool, long total, long cost_of_one,
                            const std::function<void(long, long)>& function) {
  static const auto upstream = torch_xla::UpstreamFunction(&ParallelFor);
  if (few_threads && total > 0 &&
      cost_of_one <= kFewBuffers * kBufferCost / total) {
    function(0, total);
  } else {
    upstream(pool, total, cost_of_one, function);
  }
}

}  // namespace torch_xla_ext
