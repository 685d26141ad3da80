// Registers the partitioner with a CUDA plugin, which has its own XLA.
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/partitioned_call.h"
#include "torch_xla_ext/csrc/partitioning/partitioning.h"
#include "torch_xla_ext/csrc/pjrt_shim/partitioners.h"

namespace torch_xla_ext {
namespace {

using pjrt_shim::CallbackVersionAndError;
using pjrt_shim::InferShardingArgs;
using pjrt_shim::PartitionArgs;
using pjrt_shim::PartitionerCallbacks;
using pjrt_shim::PropagateUserShardingArgs;
using pjrt_shim::ShapeAndSharding;
using pjrt_shim::Text;

// The result of a callback, which XLA frees.
class Returned {
 public:
  explicit Returned(CallbackVersionAndError* header) {
    header->data = this;
    header->cleanup = [](void* data) { delete static_cast<Returned*>(data); };
    header->has_error = false;
  }

  Text Keep(std::string text) {
    texts_.push_back(std::move(text));
    return {texts_.back().data(), texts_.back().size()};
  }

  Text* Keep(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) list_.push_back(Keep(text));
    return list_.data();
  }

 private:
  std::deque<std::string> texts_;
  std::vector<Text> list_;
};

std::string ToString(const Text& text) { return {text.data, text.size}; }

std::optional<std::string> ShardingOf(const ShapeAndSharding& array) {
  if (!array.has_sharding) return std::nullopt;
  return ToString(array.sharding);
}

Shardings OperandShardings(const ShapeAndSharding* arrays, size_t count) {
  Shardings shardings;
  for (size_t i = 0; i < count; ++i) {
    shardings.push_back(ShardingOf(arrays[i]));
  }
  return shardings;
}

void Partition(PartitionerCallbacks* /*callbacks*/, PartitionArgs* args) {
  auto* returned = new Returned(&args->header);
  try {
    const CustomCallConfig& config =
        PartitionedCall(ToString(args->backend_config));
    const DeviceCall call = GetPartitionFunctions().divide(
        config.partition, OperandShardings(args->op_args, args->num_args),
        ShardingOf(args->op_result));
    args->mlir_module = returned->Keep(DeviceProgram(config, call));
    args->args_sharding = returned->Keep(call.operand_shardings);
    args->result_sharding = returned->Keep(call.result_sharding);
  } catch (const std::exception& error) {
    args->header.has_error = true;
    args->header.code = PJRT_Error_Code_INVALID_ARGUMENT;
    args->header.error_message = returned->Keep(error.what());
  }
}

// An error of this or the next function would crash the process. Without a
// sharding, XLA still calls Partition, which reports the error.
void InferSharding(PartitionerCallbacks* /*callbacks*/,
                   InferShardingArgs* args) {
  auto* returned = new Returned(&args->header);
  args->has_result_sharding = false;
  try {
    const CustomCallConfig& config =
        PartitionedCall(ToString(args->backend_config));
    const std::optional<std::string> inferred = GetPartitionFunctions().infer(
        config.partition, OperandShardings(args->op_args, args->num_args));
    if (!inferred) return;
    args->has_result_sharding = true;
    args->result_sharding = returned->Keep(*inferred);
  } catch (const std::exception&) {
  }
}

void PropagateUserSharding(PartitionerCallbacks* /*callbacks*/,
                           PropagateUserShardingArgs* args) {
  auto* returned = new Returned(&args->header);
  std::string sharding = ToString(args->result_sharding);
  try {
    const CustomCallConfig& config =
        PartitionedCall(ToString(args->backend_config));
    sharding = GetPartitionFunctions().propagate(config.partition, sharding);
  } catch (const std::exception&) {
  }
  args->result_sharding = returned->Keep(std::move(sharding));
}

}  // namespace

void RegisterPluginPartitioner(const PJRT_Api* plugin) {
  static PartitionerCallbacks callbacks = {
      /*version=*/0,
      /*private_data=*/nullptr,
      /*destroy=*/[](PartitionerCallbacks*) {},
      Partition,
      InferSharding,
      PropagateUserSharding,
      /*can_side_effecting_have_replicated_sharding=*/true,
  };
  pjrt_shim::RegisterPartitioner(plugin, kPartitionedTarget, &callbacks);
}

}  // namespace torch_xla_ext
