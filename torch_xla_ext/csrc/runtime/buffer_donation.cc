#include "torch_xla_ext/csrc/runtime/buffer_donation.h"

#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/metrics.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace torch_xla_ext {
namespace {

// Results by the ids of the tensors whose values they replace.
std::unordered_map<int64_t, size_t> ResultsByTensor(
    const LoweredProgram& program) {
  std::unordered_map<int64_t, size_t> results;
  for (size_t i = 0; i < program.indices.size(); ++i) {
    results[program.tensors[program.indices[i]]->data()->alias_id] = i;
  }
  return results;
}

// Parameters' nodes, by the addresses of their shapes in the builder, which are
// different for different operations.
std::unordered_map<const xla::Shape*, const torch::lazy::Node*> NodesByShape(
    torch_xla::LoweringContext* context, const LoweredProgram& program) {
  std::unordered_map<const xla::Shape*, const torch::lazy::Node*> nodes;
  for (const torch::lazy::Node* node : program.post_order) {
    if (!node->operands().empty()) continue;
    const xla::XlaOp op = context->GetOutputOp(torch::lazy::Output(node, 0));
    nodes.emplace(&torch_xla::ShapeHelper::ShapeOfXlaOp(op), node);
  }
  return nodes;
}

std::string Sharding(const torch::lazy::Node* node, size_t index) {
  // All nodes of a program are XlaNodes.
  const auto sharding =
      static_cast<const torch_xla::XlaNode*>(node)->GetSharding(index);
  return sharding == nullptr ? "" : sharding->SerializeAsString();
}

}  // namespace

void SetAliases(torch_xla::LoweringContext* context,
                const LoweredProgram& program,
                const std::vector<size_t>& donors) {
  TORCH_LAZY_VALUE_METRIC("InputOutputAliasCount", donors.size());
  if (donors.empty()) return;
  using DeviceDataInfo = torch::lazy::LazyGraphExecutor::DeviceDataInfo;
  std::unordered_map<int64_t, size_t> results = ResultsByTensor(program);
  std::unordered_map<const xla::Shape*, const torch::lazy::Node*> nodes;
  const bool is_sharded = torch_xla::UseVirtualDevice(/*force_spmd=*/false);
  if (is_sharded) nodes = NodesByShape(context, program);

  for (const size_t donor : donors) {
    const torch::lazy::BackendDataPtr& data = program.parameters[donor];
    const xla::XlaOp parameter = context->GetParameter(data, {});
    const auto* info = static_cast<const DeviceDataInfo*>(data->info());
    const auto found =
        info == nullptr ? results.end() : results.find(info->tensor_id);
    bool has_result = found != results.end() &&
                      context->CheckResultShape(data, found->second);
    if (has_result && is_sharded) {
      const auto node =
          nodes.find(&torch_xla::ShapeHelper::ShapeOfXlaOp(parameter));
      const torch::lazy::Value& result = program.results[found->second];
      const std::string sharding = Sharding(result.node.get(), result.index);
      // Where there is none, XLA chooses one.
      has_result = node != nodes.end() && !sharding.empty() &&
                   sharding == Sharding(node->second, 0);
    }
    if (has_result) {
      const auto index = static_cast<int64_t>(found->second);
      parameter.builder()->SetUpAlias(
          {index}, donor, {}, xla::HloInputOutputAliasConfig::kMayAlias);
      results.erase(found);  // which can replace one parameter only
    } else {
      parameter.builder()->AddBufferDonor(donor, {});
    }
  }
}

}  // namespace torch_xla_ext
