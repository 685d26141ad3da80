#include "torch_xla_ext/csrc/runtime_fixes/fallback_counters.h"

namespace torch_xla_ext {
namespace {

std::mutex& CountersMutex() {
  static auto& mutex = *new std::mutex;  // threads count until the end
  return mutex;
}

thread_local FallbackCounters* newest = nullptr;

}  // namespace

FallbackCounters::FallbackCounters() : lock_(CountersMutex()), outer_(newest) {
  newest = this;
}

FallbackCounters::~FallbackCounters() { newest = outer_; }

void FallbackCounters::Unlock() {
  if (newest != nullptr && newest->lock_.owns_lock()) newest->lock_.unlock();
}

}  // namespace torch_xla_ext
