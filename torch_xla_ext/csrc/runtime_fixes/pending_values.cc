#include "torch_xla_ext/csrc/runtime_fixes/pending_values.h"

#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/tensor.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/sharding_call.h"
#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"

namespace torch_xla_ext {
namespace {

// The device data of a value, or of the value inside it if only sharding nodes
// were put around it; null if there is none. Copying into a sharded tensor
// makes such values.
torch::lazy::BackendDataPtr DataUnderShardings(torch::lazy::Value value) {
  static const auto sharding = torch::lazy::OpKind::Get("xla::custom_sharding");
  // interpose/pass_through.h
  static const auto passed = torch::lazy::OpKind::Get("xla::pass_through");
  const std::string shape = torch_xla::GetXlaShape(value).ToString();
  while (value.node->op() == sharding || value.node->op() == passed) {
    const torch::lazy::Output& operand = value.node->operand(0);
    value = torch::lazy::Value(
        torch::lazy::NodePtr(value.node,
                             const_cast<torch::lazy::Node*>(operand.node)),
        operand.index);
  }
  // Some sharding nodes yield a device's shard of a value.
  if (torch_xla::GetXlaShape(value).ToString() != shape) return nullptr;
  return torch::lazy::getBackend()->GetComputationDataFromNode(
      value.node.get());
}

}  // namespace

torch::lazy::BackendDataPtr DataOfPendingClone(
    const torch_xla::XLATensor& tensor) {
  const auto& data = tensor.data();
  if (!data->is_cloned || data->handle != nullptr || !data->ir_value) {
    return nullptr;
  }
  torch::lazy::BackendDataPtr source =
      torch::lazy::getBackend()->GetComputationDataFromNode(
          data->ir_value.node.get());
  if (source != nullptr) WaitForValue(*source);
  // The clone stays pending; the next step computes it.
  return source;
}

void KeepShardedValues() {
  if (!torch_xla::UseVirtualDevice(/*force_spmd=*/false)) return;
  auto* const executor = torch_xla::XLAGraphExecutor::Get();
  for (const auto& tensor : executor->GetLiveTensors(/*device=*/nullptr)) {
    const auto& data = tensor->data();
    if (data->handle != nullptr || !data->ir_value) continue;
    torch::lazy::BackendDataPtr value = DataUnderShardings(data->ir_value);
    if (value != nullptr) tensor->SetXlaData(std::move(value));
  }
}

bool AreInManualRegion(at::TensorList tensors) {
  static const auto sharding = torch::lazy::OpKind::Get("xla::custom_sharding");
  std::unordered_set<const torch::lazy::Node*> seen;
  std::vector<const torch::lazy::Node*> waiting;
  for (const at::Tensor& tensor : tensors) {
    const auto xla_tensor = torch_xla::bridge::TryGetXlaTensor(tensor);
    if (xla_tensor && xla_tensor->data()->ir_value) {
      waiting.push_back(xla_tensor->data()->ir_value.node.get());
    }
  }
  while (!waiting.empty()) {
    const torch::lazy::Node* const node = waiting.back();
    waiting.pop_back();
    if (!seen.insert(node).second) continue;
    if (node->op() == sharding) {
      const auto marked =
          static_cast<const torch_xla::XlaNode*>(node)->GetSharding(0);
      if (marked != nullptr && IsManual(marked->SerializeAsString())) {
        return true;
      }
      continue;  // A mark, or the end of a region: a whole tensor.
    }
    for (const torch::lazy::Output& operand : node->operands()) {
      waiting.push_back(operand.node);
    }
  }
  return false;
}

}  // namespace torch_xla_ext
