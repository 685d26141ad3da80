// Interposes on the functions that send tensors of the host to devices:
// TensorToXlaData and CreateTensorsData. They copy each tensor first, and
// PyTorch copies 32,768 numbers or more in several threads. These sleep between
// the steps of a program, and waking them takes longer than the copy. So the
// calling thread copies what is small.
//
// This works because the upstream binary calls the functions through its PLT.
// The upstream functions are called from here.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"

#define TENSOR_TO_XLA_DATA                                            \
  "_ZN9torch_xla15TensorToXlaDataERKN2at6TensorERKN5torch4lazy13Back" \
  "endDeviceE"
#define CREATE_TENSORS_DATA                                             \
  "_ZN9torch_xla17CreateTensorsDataERKSt6vectorIN2at6TensorESaIS2_EERK" \
  "S0_INSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESaISC_EE"
#define CREATE_SHARDED_TENSORS_DATA                                      \
  "_ZN9torch_xla17CreateTensorsDataERKSt6vectorIN2at6TensorESaIS2_EERK"  \
  "S0_ISt10shared_ptrINS_9XLATensor12ShardingSpecEESaISA_EERKS0_INSt7__" \
  "cxx1112basic_stringIcSt11char_traitsIcESaIcEEESaISK_EE"

namespace torch_xla {
namespace {

using DataPtr = torch::lazy::BackendDataPtr;
using Tensors = std::vector<at::Tensor>;
using Shardings = std::vector<std::shared_ptr<XLATensor::ShardingSpec>>;

// One thread copies as many bytes in less than a millisecond.
constexpr int64_t kFewBytes = 4 << 20;

// The OpenMP that PyTorch uses; others may be in the process.
template <typename Function>
Function* OpenMp(const char* name) {
  static void* const torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  return torch == nullptr ? nullptr
                          : reinterpret_cast<Function*>(dlsym(torch, name));
}

// While it lives, PyTorch's operations use one thread in this thread if the
// tensors are small. Other threads' operations are as before, for which
// at::set_num_threads would not care.
class CopyInThisThread {
 public:
  explicit CopyInThisThread(at::ArrayRef<at::Tensor> tensors) {
    int64_t num_bytes = 0;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) num_bytes += tensor.numel() * tensor.itemsize();
    }
    if (num_bytes > kFewBytes || Set() == nullptr) return;
    before_ = at::get_num_threads();
    if (before_ > 1) Set()(1);
  }
  ~CopyInThisThread() {
    if (before_ > 1) Set()(before_);
  }
  CopyInThisThread(const CopyInThisThread&) = delete;
  CopyInThisThread& operator=(const CopyInThisThread&) = delete;

 private:
  using SetNumThreads = void(int);
  static SetNumThreads* Set() {
    static auto* const set = OpenMp<SetNumThreads>("omp_set_num_threads");
    return set;
  }

  int before_ = 1;
};

}  // namespace

extern "C" DataPtr TensorToXlaDataInThisThread(
    const at::Tensor& tensor,
    const torch::lazy::BackendDevice& device) __asm__(TENSOR_TO_XLA_DATA);

extern "C" DataPtr TensorToXlaDataInThisThread(
    const at::Tensor& tensor, const torch::lazy::BackendDevice& device) {
  static const auto upstream =
      UpstreamFunction(&TensorToXlaDataInThisThread, TENSOR_TO_XLA_DATA);
  const CopyInThisThread copy(tensor);
  return upstream(tensor, device);
}

extern "C" std::vector<DataPtr> CreateTensorsDataInThisThread(
    const Tensors& tensors,
    const std::vector<std::string>& devices) __asm__(CREATE_TENSORS_DATA);

extern "C" std::vector<DataPtr> CreateTensorsDataInThisThread(
    const Tensors& tensors, const std::vector<std::string>& devices) {
  static const auto upstream =
      UpstreamFunction(&CreateTensorsDataInThisThread, CREATE_TENSORS_DATA);
  const CopyInThisThread copy(tensors);
  return upstream(tensors, devices);
}

extern "C" std::vector<DataPtr> CreateShardedTensorsDataInThisThread(
    const Tensors& tensors, const Shardings& shardings,
    const std::vector<std::string>&
        devices) __asm__(CREATE_SHARDED_TENSORS_DATA);

extern "C" std::vector<DataPtr> CreateShardedTensorsDataInThisThread(
    const Tensors& tensors, const Shardings& shardings,
    const std::vector<std::string>& devices) {
  static const auto upstream = UpstreamFunction(
      &CreateShardedTensorsDataInThisThread, CREATE_SHARDED_TENSORS_DATA);
  const CopyInThisThread copy(tensors);
  return upstream(tensors, shardings, devices);
}

}  // namespace torch_xla
