// Copies a small host tensor in one thread before it is sent to a device.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_HOST_COPIES_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_HOST_COPIES_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace torch_xla_ext {

// While it lives, PyTorch's operations use one thread in this thread if the
// tensors are small. PyTorch copies 32,768 numbers or more in several threads.
// These sleep between the steps of a program, and waking them takes longer than
// the copy. Other threads' operations are not affected, unlike by
// at::set_num_threads.
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
