#include "torch_xla_ext/csrc/runtime_fixes/buffer_donation.h"

#include <torch/csrc/lazy/backend/backend_interface.h>
#include <torch/csrc/lazy/core/lazy_graph_executor.h>
#include <torch/csrc/lazy/core/metrics.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "torch_xla_ext/csrc/runtime_fixes/tensor_lock.h"

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

// Empty if the result is replicated, or if XLA chooses its sharding.
std::string Sharding(const torch::lazy::Node* node, size_t index) {
  // All nodes of a program are XlaNodes.
  const auto sharding =
      static_cast<const torch_xla::XlaNode*>(node)->GetSharding(index);
  return sharding == nullptr ? "" : sharding->SerializeAsString();
}

// Whether several threads, including this one, donate buffers of `device`
// alternately. A program that moves to another thread once does not count.
bool ThreadsDonateInTurns(const torch::lazy::BackendDevice& device) {
  struct Threads {
    std::thread::id last;
    std::set<std::thread::id> earlier;
    bool in_turns = false;
  };
  static std::mutex mutex;
  static auto& threads_of = *new std::map<torch::lazy::BackendDevice, Threads>;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::thread::id own = std::this_thread::get_id();
  Threads& threads = threads_of.try_emplace(device, Threads{own}).first->second;
  if (!threads.in_turns && threads.last != own) {
    threads.in_turns = threads.earlier.count(own) != 0;
    threads.earlier.insert(std::exchange(threads.last, own));
  }
  return threads.in_turns;
}

// Whether another thread may be making an operation from a value that is being
// computed, or from one that would be overwritten.
bool AnotherThreadTraces(
    const std::vector<size_t>& donors,
    const std::vector<torch::lazy::BackendDataPtr>& parameters,
    const std::vector<torch_xla::XLATensorPtr>& computed) {
  using DeviceDataInfo = torch::lazy::LazyGraphExecutor::DeviceDataInfo;
  for (const size_t donor : donors) {
    const auto* info =
        static_cast<const DeviceDataInfo*>(parameters[donor]->info());
    if (info != nullptr && LastReadElsewhere(info->tensor_id)) return true;
  }
  return std::any_of(computed.begin(), computed.end(), [](const auto& tensor) {
    return LastReadElsewhere(tensor->GetUniqueId());
  });
}

// The `parameters`, old values of `computed`, that are also the value of
// another tensor: `x.copy_(y)` gives both one buffer.
std::unordered_set<const torch::lazy::BackendData*> SharedValues(
    const std::vector<size_t>& donors,
    const std::vector<torch::lazy::BackendDataPtr>& parameters,
    const torch::lazy::BackendDevice& device,
    const std::vector<torch_xla::XLATensorPtr>& computed) {
  using DeviceDataInfo = torch::lazy::LazyGraphExecutor::DeviceDataInfo;
  std::unordered_set<const torch::lazy::LazyTensor::Data*> replaced;
  std::unordered_set<int64_t> ids;
  for (const auto& tensor : computed) {
    replaced.insert(tensor->data().get());
    ids.insert(tensor->data()->alias_id);
  }
  std::unordered_set<const torch::lazy::BackendData*> old;
  for (const size_t donor : donors) {
    // Only old values of computed tensors matter. The other donors are tensors
    // that the program gives away.
    const auto* info =
        static_cast<const DeviceDataInfo*>(parameters[donor]->info());
    if (info != nullptr && ids.count(info->tensor_id) != 0) {
      old.insert(parameters[donor].get());
    }
  }
  std::unordered_set<const torch::lazy::BackendData*> shared;
  auto* const executor = torch_xla::XLAGraphExecutor::Get();
  for (const auto& tensor : executor->GetLiveTensors(&device)) {
    const auto& data = tensor->data();
    if (data->handle != nullptr && old.count(data->handle.get()) != 0 &&
        replaced.count(data.get()) == 0) {
      shared.insert(data->handle.get());
    }
  }
  return shared;
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
      has_result = node != nodes.end() && sharding == Sharding(node->second, 0);
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

std::unordered_set<const torch::lazy::BackendData*> ReadByPendingValues(
    const std::unordered_set<const torch::lazy::BackendData*>& parameters,
    const torch::lazy::BackendDevice& device,
    const std::vector<torch_xla::XLATensorPtr>& computed) {
  std::unordered_set<const torch::lazy::LazyTensor::Data*> skipped;
  for (const auto& tensor : computed) skipped.insert(tensor->data().get());
  auto* const executor = torch_xla::XLAGraphExecutor::Get();
  std::vector<torch::lazy::Value> pending;
  for (const auto& tensor : executor->GetLiveTensors(&device)) {
    const auto& data = tensor->data();
    if (data->handle != nullptr || !data->ir_value) continue;
    if (skipped.count(data.get()) == 0) pending.push_back(data->ir_value);
  }
  std::unordered_set<const torch::lazy::BackendData*> read;
  std::unordered_set<const torch::lazy::Node*> seen;
  std::vector<const torch::lazy::Node*> to_visit;
  for (const torch::lazy::Value& value : pending) {
    to_visit.push_back(value.node.get());
  }
  while (!to_visit.empty() && read.size() < parameters.size()) {
    const torch::lazy::Node* node = to_visit.back();
    to_visit.pop_back();
    if (!seen.insert(node).second) continue;
    for (const torch::lazy::Output& operand : node->operands()) {
      to_visit.push_back(operand.node);
    }
    if (!node->operands().empty()) continue;
    const torch::lazy::BackendDataPtr data =
        torch::lazy::getBackend()->GetComputationDataFromNode(node);
    if (parameters.count(data.get()) != 0) read.insert(data.get());
  }
  return read;
}

std::vector<size_t> FreeDonors(
    std::vector<size_t> donors,
    const std::vector<torch::lazy::BackendDataPtr>& parameters,
    const torch::lazy::BackendDevice& device,
    const std::vector<torch_xla::XLATensorPtr>& computed) {
  if (ThreadsDonateInTurns(device) ||
      AnotherThreadTraces(donors, parameters, computed)) {
    return {};
  }
  std::unordered_set<const torch::lazy::BackendData*> data;
  for (const size_t donor : donors) data.insert(parameters[donor].get());
  auto read = ReadByPendingValues(data, device, computed);
  read.merge(SharedValues(donors, parameters, device, computed));
  donors.erase(std::remove_if(donors.begin(), donors.end(),
                              [&](size_t donor) {
                                return read.count(parameters[donor].get()) != 0;
                              }),
               donors.end());
  return donors;
}

}  // namespace torch_xla_ext
