#include "torch_xla_ext/csrc/runtime_fixes/random_state.h"

#include <mutex>
#include <utility>

#include "torch_xla_ext/csrc/runtime_fixes/device_context.h"
#include "torch_xla_ext/csrc/runtime_fixes/thread_trace.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

RandomState::RandomState() : device_(torch_xla::bridge::GetCurrentDevice()) {
  const SeedOfThread seed(device_);
  DeviceContext* const context = ContextOf(device_);
  bool has_value;
  {
    std::lock_guard<std::mutex> lock(context->lock);
    has_value = context->seed_ir_value;
  }
  if (!has_value) {
    torch_xla::XLAGraphExecutor::Get()->GetBaseSeedData(device_);
  }
  std::lock_guard<std::mutex> lock(context->lock);
  seed_ = context->seed;
  running_seed_ = context->running_seed;
  value_ = context->seed_ir_value;
}

at::Tensor RandomState::Seed() const {
  return torch_xla::bridge::AtenFromXlaTensor(torch_xla::XLATensor::Create(
      value_, device_, at::kLong, /*delay_eager_execution=*/false));
}

void RandomState::Restore(const at::Tensor& seed) const {
  SetTo(torch_xla::bridge::TryGetXlaTensor(seed)->GetIrValue());
}

void RandomState::RestoreValue() const { SetTo(value_); }

void RandomState::SetTo(torch::lazy::Value value) const {
  const SeedOfThread own(device_);
  DeviceContext* const context = ContextOf(device_);
  std::lock_guard<std::mutex> lock(context->lock);
  context->seed = seed_;
  context->running_seed = running_seed_;
  context->seed_ir_value = std::move(value);
}

}  // namespace torch_xla_ext
