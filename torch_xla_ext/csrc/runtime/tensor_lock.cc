#include "torch_xla_ext/csrc/runtime/tensor_lock.h"

#include <mutex>

#include "torch_xla_ext/csrc/runtime/failures.h"
#include "torch_xla_ext/csrc/runtime/without_gil.h"

namespace torch_xla_ext {
namespace {

thread_local bool device_is_locked = false;

// Never destroyed: threads may run at exit.
std::recursive_mutex& Mutex() {
  static auto& mutex = *new std::recursive_mutex;
  return mutex;
}

}  // namespace

TensorLock::TensorLock() {
  if (Mutex().try_lock()) return;
  const WithoutGil without_gil;
  Mutex().lock();
}

TensorLock::~TensorLock() { Mutex().unlock(); }

void ReplaceOperations(const std::vector<torch_xla::XLATensorPtr>& tensors,
                       absl::Span<const size_t> indices,
                       const std::vector<torch::lazy::BackendDataPtr>& data) {
  auto next = data.begin();
  for (const size_t index : indices) {
    const torch_xla::XLATensorPtr& tensor = tensors[index];
    if (tensor->data()->handle == nullptr) tensor->SetXlaData(*next);
    ++next;
  }
}

DeviceIsLocked::DeviceIsLocked() { device_is_locked = true; }

DeviceIsLocked::~DeviceIsLocked() { device_is_locked = false; }

void WaitForValue(const torch::lazy::BackendData& data) {
  if (data.HasValue()) return;
  if (!device_is_locked) torch_xla::XLAGraphExecutor::Get()->WaitDeviceOps({});
  if (!data.HasValue()) ThrowNoValue("a tensor", data);
}

}  // namespace torch_xla_ext
