#include "torch_xla_ext/csrc/runtime_fixes/host_copies.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <cstdint>

namespace torch_xla_ext {
namespace {

// One thread copies this many bytes in about a millisecond.
constexpr int64_t kFewBytes = 4 << 20;

// Calls omp_set_num_threads of the OpenMP that PyTorch uses (the process may
// have several). Does nothing without OpenMP.
void SetNumThreads(int count) {
  using Function = void(int);
  static auto* const set = [] {
    void* const torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    return torch == nullptr ? nullptr
                            : reinterpret_cast<Function*>(
                                  dlsym(torch, "omp_set_num_threads"));
  }();
  if (set != nullptr) set(count);
}

}  // namespace

CopyInThisThread::CopyInThisThread(at::ArrayRef<at::Tensor> tensors) {
  int64_t num_bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) num_bytes += tensor.numel() * tensor.itemsize();
  }
  if (num_bytes > kFewBytes) return;
  before_ = at::get_num_threads();
  if (before_ > 1) SetNumThreads(1);
}

CopyInThisThread::~CopyInThisThread() {
  if (before_ > 1) SetNumThreads(before_);
}

}  // namespace torch_xla_ext
