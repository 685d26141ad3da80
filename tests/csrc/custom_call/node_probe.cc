// A Python module that exposes values without a Python API: the IR node of a
// custom call, its clone, the result for the upstream binary's own C++ callers,
// and a tensor's shape as these callers hold it.
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/custom_call.h"
#include "torch_xla_ext/csrc/custom_call/gpu_custom_call.h"

namespace torch_xla::tensor_methods {
// In the upstream binary; no Python function calls it any more.
std::vector<XLATensorPtr> gpu_custom_call(
    const std::vector<XLATensorPtr>& inputs, const std::string& payload,
    const std::vector<std::vector<int64_t>>& output_shapes,
    const std::vector<at::ScalarType>& output_dtypes);
}  // namespace torch_xla::tensor_methods

// Inline in upstream; the definition in the wheel's front library is not
// exported.
bool torch_xla::XLAGraphExecutor::UseEagerMode() { return false; }

namespace {

namespace py = pybind11;

using NodeView = std::pair<std::string, std::string>;  // ToString and hash

NodeView View(const torch_xla::XlaNode& node) {
  return {node.ToString(), torch::lazy::HashToString(node.hash())};
}

// The node of a call with every member set, and its clone.
std::pair<NodeView, NodeView> NodeAndClone(const at::Tensor& tensor) {
  torch_xla_ext::CustomCallConfig config =
      torch_xla_ext::GpuCustomCallConfig("Probe");
  config.payload = std::string("a\0\"", 3);
  config.has_side_effect = true;
  config.operand_types = {xla::F32};
  config.frontend_attributes = {{"key", "value"}};
  const std::vector<torch::lazy::Value> operands = {
      torch_xla::bridge::TryGetXlaTensor(tensor)->GetIrValue()};
  const auto node = std::static_pointer_cast<torch_xla::XlaNode>(
      torch_xla_ext::MakeCustomCallNode(
          torch::lazy::OpKind::Get("xla::gpu_custom_call"), operands,
          torch_xla::bridge::TryGetXlaTensor(tensor)->GetDevice(),
          {{{2, 3}}, {at::kFloat}}, config));
  const torch::lazy::NodePtr clone = node->Clone(operands);
  return {View(*node), View(static_cast<torch_xla::XlaNode&>(*clone))};
}

std::vector<at::Tensor> UpstreamGpuCustomCall(
    const at::Tensor& tensor, const std::string& payload,
    const std::vector<int64_t>& shape) {
  return torch_xla::bridge::AtenFromXlaTensors(
      torch_xla::tensor_methods::gpu_custom_call(
          {torch_xla::bridge::TryGetXlaTensor(tensor)}, payload, {shape},
          {at::kFloat}));
}

// A tensor's shape, which is taken before the call and read after it. The
// address is that of the XLATensor::shape that the upstream binary calls.
std::string ShapeAcross(uintptr_t address, const at::Tensor& tensor,
                        const py::function& call) {
  using Function = torch_xla::runtime::util::MaybeRef<xla::Shape>(
      const torch_xla::XLATensor*);
  const auto shape = reinterpret_cast<Function*>(address)(
      torch_xla::bridge::TryGetXlaTensor(tensor).get());
  call();
  return shape.get().ToString();
}

}  // namespace

PYBIND11_MODULE(node_probe, module) {
  module.def("node_and_clone", &NodeAndClone);
  module.def("upstream_gpu_custom_call", &UpstreamGpuCustomCall);
  module.def("shape_across", &ShapeAcross);
}
