// Interposes on the functions that send tensors of the host to devices:
// TensorToXlaData and CreateTensorsData, and UpdateFromTensor, which keeps a
// copy under SPMD. They copy each tensor first, the small ones in the calling
// thread (runtime_fixes/host_copies.h).
//
// This works because the upstream binary calls the functions through its PLT.
// The upstream functions are called from here.
#include "torch_xla_ext/csrc/runtime_fixes/host_copies.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/interpose/abi/torch_xla.h"
#include "torch_xla_ext/csrc/interpose/upstream_function.h"

namespace torch_xla {
namespace {

using DataPtr = torch::lazy::BackendDataPtr;
using Tensors = std::vector<at::Tensor>;
using Shardings = std::vector<std::shared_ptr<XLATensor::ShardingSpec>>;

}  // namespace

DataPtr TensorToXlaData(const at::Tensor& tensor,
                        const torch::lazy::BackendDevice& device) {
  static const auto upstream = UpstreamFunction(&TensorToXlaData);
  const torch_xla_ext::CopyInThisThread copy(tensor);
  return upstream(tensor, device);
}

std::vector<DataPtr> CreateTensorsData(
    const Tensors& tensors, const std::vector<std::string>& devices) {
  using Function =
      std::vector<DataPtr>(const Tensors&, const std::vector<std::string>&);
  static const auto upstream =
      UpstreamFunction(static_cast<Function*>(&CreateTensorsData));
  const torch_xla_ext::CopyInThisThread copy(tensors);
  return upstream(tensors, devices);
}

std::vector<DataPtr> CreateTensorsData(
    const Tensors& tensors, const Shardings& shardings,
    const std::vector<std::string>& devices) {
  using Function = std::vector<DataPtr>(const Tensors&, const Shardings&,
                                        const std::vector<std::string>&);
  static const auto upstream =
      UpstreamFunction(static_cast<Function*>(&CreateTensorsData));
  const torch_xla_ext::CopyInThisThread copy(tensors);
  return upstream(tensors, shardings, devices);
}

void XLATensor::UpdateFromTensor(at::Tensor tensor, bool sync) {
  static const auto upstream = UpstreamFunction(&XLATensor::UpdateFromTensor);
  const torch_xla_ext::CopyInThisThread copy(tensor);
  upstream(this, std::move(tensor), sync);
}

}  // namespace torch_xla
