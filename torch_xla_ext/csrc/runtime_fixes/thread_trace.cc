#include "torch_xla_ext/csrc/runtime_fixes/thread_trace.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "torch_xla_ext/csrc/runtime_fixes/device_context.h"

namespace torch_xla_ext {
namespace {

// A device's random state, of a trace or of the code outside of it.
struct Seed {
  explicit Seed(DeviceContext* context)
      : seed(context->seed),
        running_seed(context->running_seed),
        value(context->seed_ir_value) {}

  void ExchangeWith(DeviceContext* context) {
    std::swap(seed, context->seed);
    std::swap(running_seed, context->running_seed);
    std::swap(value, context->seed_ir_value);
  }

  uint64_t seed;
  uint64_t running_seed;
  torch::lazy::Value value;
};

// A trace's seed of a device.
struct TracedSeed {
  explicit TracedSeed(DeviceContext* context)
      : seed(context), first(context->seed) {}

  Seed seed;
  uint64_t first;             // the device's seed when the trace first used it
  bool is_exchanged = false;  // `seed` and the device's seed are exchanged
};

}  // namespace

struct ThreadTrace::State {
  std::shared_ptr<c10::ThreadLocalDebugInfo> outer, own;  // of the thread
  std::atomic<bool> is_running = true;
  std::unordered_set<int64_t>
      tensors;  // by their ids; guarded by TracesMutex()
  // Guarded by the TensorLock.
  std::map<torch::lazy::BackendDevice, TracedSeed> seeds;
};

namespace {

using State = ThreadTrace::State;

// The trace of a thread, which PyTorch hands on to autograd's threads.
struct TraceOfThread : c10::DebugInfoBase {
  explicit TraceOfThread(std::shared_ptr<State> state)
      : state(std::move(state)) {}
  std::shared_ptr<State> state;
};
constexpr auto kKind = c10::DebugInfoKind::INFERENCE_CONTEXT;

// No lock is acquired while this one is held. Never destroyed: threads may run
// at exit.
std::mutex& TracesMutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

std::atomic<int> num_traces = 0;

// All running traces. Guarded by TracesMutex().
std::vector<State*>& Traces() {
  static auto& traces = *new std::vector<State*>;
  return traces;
}

State* TraceOfThisThread() {
  if (num_traces == 0) return nullptr;
  const auto* const info =
      dynamic_cast<const TraceOfThread*>(c10::ThreadLocalDebugInfo::get(kKind));
  if (info == nullptr || !info->state->is_running) return nullptr;
  return info->state.get();
}

}  // namespace

ThreadTrace::ThreadTrace() : state_(std::make_shared<State>()) {
  {
    const std::lock_guard<std::mutex> lock(TracesMutex());
    Traces().push_back(state_.get());
    ++num_traces;
  }
  state_->outer = c10::ThreadLocalDebugInfo::current();
  c10::ThreadLocalDebugInfo::_push(kKind,
                                   std::make_shared<TraceOfThread>(state_));
  state_->own = c10::ThreadLocalDebugInfo::current();
}

ThreadTrace::~ThreadTrace() { End(/*keeps=*/false); }

void ThreadTrace::End(bool keeps) {
  if (!state_->is_running.exchange(false)) return;
  if (c10::ThreadLocalDebugInfo::current() == state_->own) {
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(state_->outer);
  }
  state_->own = state_->outer = nullptr;
  const TensorLock lock;
  for (auto& [device, traced] : state_->seeds) {
    DeviceContext* const context = ContextOf(device);
    const std::lock_guard<std::mutex> context_lock(context->lock);
    // Not if another thread has ended a step, because it may have drawn from
    // the next seed.
    if (keeps && context->seed == traced.first) {
      traced.seed.ExchangeWith(context);
    }
  }
  const std::lock_guard<std::mutex> traces_lock(TracesMutex());
  auto& traces = Traces();
  traces.erase(std::find(traces.begin(), traces.end(), state_.get()));
  --num_traces;
  state_->tensors.clear();
}

void NoteTraced(int64_t tensor_id) {
  State* const state = TraceOfThisThread();
  if (state == nullptr) return;
  const std::lock_guard<std::mutex> lock(TracesMutex());
  state->tensors.insert(tensor_id);
}

std::optional<std::vector<torch_xla::XLATensorPtr>> WithoutOthersTraces(
    const std::vector<torch_xla::XLATensorPtr>& tensors) {
  if (num_traces == 0) return std::nullopt;
  const State* const own = TraceOfThisThread();
  const std::lock_guard<std::mutex> lock(TracesMutex());
  const auto& traces = Traces();
  std::vector<torch_xla::XLATensorPtr> kept;
  for (const torch_xla::XLATensorPtr& tensor : tensors) {
    const int64_t id = tensor->GetUniqueId();
    if (std::none_of(traces.begin(), traces.end(), [&](const State* trace) {
          return trace != own && trace->tensors.count(id) != 0;
        })) {
      kept.push_back(tensor);
    }
  }
  if (kept.size() == tensors.size()) return std::nullopt;
  return kept;
}

struct SeedOfThread::Exchange {
  Exchange(TracedSeed* traced, DeviceContext* context)
      : traced(traced), context(context) {
    Run(true);
  }
  ~Exchange() { Run(false); }

  void Run(bool begins) {
    const std::lock_guard<std::mutex> lock(context->lock);
    traced->seed.ExchangeWith(context);
    traced->is_exchanged = begins;
  }

  TracedSeed* const traced;
  DeviceContext* const context;
};

SeedOfThread::SeedOfThread(const torch::lazy::BackendDevice& device) {
  State* const state = TraceOfThisThread();
  if (state == nullptr) return;
  DeviceContext* const context = ContextOf(device);
  auto found = state->seeds.find(device);
  if (found == state->seeds.end()) {
    const std::lock_guard<std::mutex> lock(context->lock);
    found = state->seeds.emplace(device, TracedSeed(context)).first;
  }
  if (found->second.is_exchanged) return;
  exchange_ = std::make_unique<Exchange>(&found->second, context);
}

SeedOfThread::~SeedOfThread() = default;

}  // namespace torch_xla_ext
