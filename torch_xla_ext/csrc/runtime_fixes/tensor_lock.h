// Lets several threads trace and compute tensors.
//
// torch_xla.sync() computes all live tensors of a device, including those of
// other threads. While it collects them and gives them the data that the
// program will fill, another thread must not change them. Upstream has no lock
// for this: the other thread can see a tensor without operations and without
// data, "Check failed: tensor_data".
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_TENSOR_LOCK_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_TENSOR_LOCK_H_

#include <torch/csrc/lazy/backend/backend_data.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// Held by the one thread that collects tensors for a program, until they have
// their data; and by a thread that reads or replaces one tensor's operations. A
// thread may hold it several times. Never acquire it while holding the GIL or a
// device's lock: its holder may wait for both.
class TensorLock {
 public:
  TensorLock();
  // For a thread that reads the tensor's operations; see LastReadElsewhere.
  explicit TensorLock(const torch_xla::XLATensor& read);
  ~TensorLock();
  TensorLock(const TensorLock&) = delete;
  TensorLock& operator=(const TensorLock&) = delete;
};

// Whether another thread was the last to read the operations of the tensor with
// this id. It may be making an operation from them that is in no tensor yet.
bool LastReadElsewhere(int64_t tensor_id);

// Whether another thread has read operations of any tensor. In a backward pass
// of autograd, the thread that waits for it is no other thread.
bool OthersRead();

// Gives the tensors tensors[indices[i]] that have no data the placeholders
// data[i], and then removes their operations. Upstream removes the operations
// first, and compiles the program in between: if that failed, all pending work
// was lost, and each later sync() failed too.
void ReplaceOperations(const std::vector<torch_xla::XLATensorPtr>& tensors,
                       absl::Span<const size_t> indices,
                       const std::vector<torch::lazy::BackendDataPtr>& data);

// Lives while this thread has the lock of a device and reads tensors' data.
class DeviceIsLocked {
 public:
  DeviceIsLocked();
  ~DeviceIsLocked();
  DeviceIsLocked(const DeviceIsLocked&) = delete;
  DeviceIsLocked& operator=(const DeviceIsLocked&) = delete;
  static bool ByThisThread();
};

// Held while a tensor's shape is read from its operation or data, which are
// destroyed when another thread gives the tensor new data. A process with a
// single thread holds it, too, because that may be the first work of a second
// thread. A thread that has a device's lock does not wait for this lock.
class ShapeLock {
 public:
  ShapeLock();
  // Whether the shape stays valid while this lives.
  bool is_held() const { return lock_.has_value(); }

 private:
  std::optional<TensorLock> lock_;
};

// A copy of the shape, which is kept until this thread has read more shapes
// than tracing one operation asks for.
const xla::Shape& KeptShape(const xla::Shape& shape);

// The tensor's data, which another thread may be replacing; null if there is
// none. For a thread that does not have the device's lock.
torch::lazy::BackendDataPtr DataHandle(const torch_xla::XLATensor& tensor);

// Waits for the value of a tensor's `data`, which another thread's program may
// be computing. Throws std::runtime_error if the data then has no value because
// the program failed.
//
// Does not wait while this thread has the device's lock: no program runs then,
// and the thread would wait for itself.
void WaitForValue(const torch::lazy::BackendData& data);

// Held while a tensor's data is read. If there is data, waits until it has a
// value. Keeps other threads from replacing the tensor's operations by data. A
// thread that has a device's lock does not wait for this lock.
class ValueLock {
 public:
  explicit ValueLock(const torch_xla::XLATensor& tensor);

 private:
  std::optional<TensorLock> lock_;
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_TENSOR_LOCK_H_
