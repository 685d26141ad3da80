// Interposes on the functions that send tensors of the host to devices:
// TensorToXlaData and CreateTensorsData. They copy each tensor first, the small
// ones in the calling thread (runtime_fixes/host_copies.h).
//
// This works because the upstream binary calls the functions through its PLT.
// The upstream functions are called from here.
#include "torch_xla_ext/csrc/runtime_fixes/host_copies.h"

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

}  // namespace

extern "C" DataPtr TensorToXlaDataInThisThread(
    const at::Tensor& tensor,
    const torch::lazy::BackendDevice& device) __asm__(TENSOR_TO_XLA_DATA);

extern "C" DataPtr TensorToXlaDataInThisThread(
    const at::Tensor& tensor, const torch::lazy::BackendDevice& device) {
  static const auto upstream =
      UpstreamFunction(&TensorToXlaDataInThisThread, TENSOR_TO_XLA_DATA);
  const torch_xla_ext::CopyInThisThread copy(tensor);
  return upstream(tensor, device);
}

extern "C" std::vector<DataPtr> CreateTensorsDataInThisThread(
    const Tensors& tensors,
    const std::vector<std::string>& devices) __asm__(CREATE_TENSORS_DATA);

extern "C" std::vector<DataPtr> CreateTensorsDataInThisThread(
    const Tensors& tensors, const std::vector<std::string>& devices) {
  static const auto upstream =
      UpstreamFunction(&CreateTensorsDataInThisThread, CREATE_TENSORS_DATA);
  const torch_xla_ext::CopyInThisThread copy(tensors);
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
  const torch_xla_ext::CopyInThisThread copy(tensors);
  return upstream(tensors, shardings, devices);
}

}  // namespace torch_xla
