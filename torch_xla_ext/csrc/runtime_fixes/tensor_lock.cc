#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"

#include <pthread.h>
#include <torch/csrc/autograd/graph_task.h>

#include <array>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>
#include <utility>

#include "torch_xla_ext/csrc/runtime_fixes/failures.h"
#include "torch_xla_ext/csrc/runtime_fixes/without_gil.h"

namespace torch_xla_ext {
namespace {

thread_local bool device_is_locked = false;

// Never destroyed: threads may run at exit. Free in forked processes: its
// holder may be a thread that only the parent has.
std::recursive_mutex& Mutex() {
  static auto& mutex = *[] {
    pthread_atfork(nullptr, nullptr,
                   [] { new (&Mutex()) std::recursive_mutex; });
    return new std::recursive_mutex;
  }();
  return mutex;
}

// The thread that last read each tensor's operations. Most processes have only
// one such thread, so nothing is recorded until there is a second one. Guarded
// by the TensorLock.
struct Readers {
  std::thread::id first;
  bool are_several = false;
  int64_t first_noted = 0;  // `first` has read all tensors with smaller ids
  std::unordered_map<int64_t, std::thread::id> last;  // by the tensor's id
};

Readers& GetReaders() {
  static auto& readers = *new Readers;
  return readers;
}

void KeepLiveTensors(Readers* readers) {
  constexpr size_t kMany = 1 << 16;
  if (readers->last.size() < kMany) return;
  auto last = std::exchange(readers->last, {});
  auto* const executor = torch_xla::XLAGraphExecutor::Get();
  for (const auto& tensor : executor->GetLiveTensors(/*device=*/nullptr)) {
    const auto found = last.find(tensor->GetUniqueId());
    if (found != last.end()) readers->last.insert(*found);
  }
}

bool FirstIsElsewhere(const Readers& readers) {
  return readers.first != std::thread::id() &&
         readers.first != std::this_thread::get_id();
}

// Whether this thread runs a backward pass of autograd, on behalf of a thread
// that waits for it.
bool IsAutograds() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

// The caller must hold the TensorLock.
void NoteReader(int64_t tensor_id) {
  if (IsAutograds()) return;
  Readers& readers = GetReaders();
  const std::thread::id own = std::this_thread::get_id();
  if (!readers.are_several) {
    if (readers.first == std::thread::id()) readers.first = own;
    if (readers.first == own) return;
    readers.are_several = true;
    // Tensors are numbered in the order of their creation.
    readers.first_noted =
        torch::lazy::LazyTensor::Data(torch_xla::bridge::GetCurrentDevice())
            .unique_id;
  }
  KeepLiveTensors(&readers);
  readers.last[tensor_id] = own;
}

}  // namespace

TensorLock::TensorLock(const torch_xla::XLATensor& read) : TensorLock() {
  NoteReader(read.GetUniqueId());
}

bool OthersRead() {
  const TensorLock lock;
  const Readers& readers = GetReaders();
  return readers.are_several || (FirstIsElsewhere(readers) && !IsAutograds());
}

bool LastReadElsewhere(int64_t tensor_id) {
  const TensorLock lock;
  const Readers& readers = GetReaders();
  if (!readers.are_several) return FirstIsElsewhere(readers);
  const auto found = readers.last.find(tensor_id);
  if (found != readers.last.end()) {
    return found->second != std::this_thread::get_id();
  }
  return tensor_id < readers.first_noted &&
         readers.first != std::this_thread::get_id();
}

TensorLock::TensorLock() {
  if (!Mutex().try_lock()) {
    const WithoutGil without_gil;
    Mutex().lock();
  }
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

bool DeviceIsLocked::ByThisThread() { return device_is_locked; }

ShapeLock::ShapeLock() {
  if (!device_is_locked) lock_.emplace();
}

const xla::Shape& KeptShape(const xla::Shape& shape) {
  thread_local std::array<std::optional<xla::Shape>, 64> kept;
  thread_local size_t next = 0;
  next = (next + 1) % kept.size();
  return kept[next].emplace(shape);
}

torch::lazy::BackendDataPtr DataHandle(const torch_xla::XLATensor& tensor) {
  const TensorLock lock;
  return tensor.data()->handle;
}

void WaitForValue(const torch::lazy::BackendData& data) {
  if (data.HasValue()) return;
  if (!device_is_locked) torch_xla::XLAGraphExecutor::Get()->WaitDeviceOps({});
  if (!data.HasValue()) ThrowNoValue("a tensor", data);
}

ValueLock::ValueLock(const torch_xla::XLATensor& tensor) {
  while (true) {
    if (!device_is_locked) lock_.emplace();
    const torch::lazy::BackendDataPtr handle = tensor.data()->handle;
    if (handle == nullptr || handle->HasValue()) return;
    lock_.reset();
    WaitForValue(*handle);
  }
}

}  // namespace torch_xla_ext
