// Copies a small host tensor in one thread before it is sent to a device.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_HOST_COPIES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_HOST_COPIES_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace torch_xla_ext {

// While it lives, PyTorch's operations that this thread calls use only this
// thread, if the tensors are small. PyTorch otherwise copies 32,768 elements or
// more with a thread pool, whose threads sleep between steps; waking them takes
// longer than the copy. Unlike at::set_num_threads, this does not affect
// operations of other threads.
class CopyInThisThread {
 public:
  explicit CopyInThisThread(at::ArrayRef<at::Tensor> tensors);
  ~CopyInThisThread();
  CopyInThisThread(const CopyInThisThread&) = delete;
  CopyInThisThread& operator=(const CopyInThisThread&) = delete;

 private:
  int before_ = 1;  // the number of threads
};

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_HOST_COPIES_H_
