// Registers the partitioner with XLA:CPU, which is linked into the process.
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/custom_call/partitioned_call.h"
#include "torch_xla_ext/csrc/hlo.h"
#include "torch_xla_ext/csrc/partitioning/partitioning.h"

namespace torch_xla_ext {
namespace {

using xla::HloInstruction;
using xla::HloSharding;
using xla::spmd::PartitionedHlo;
using xla::spmd::SpmdPartitioningVisitor;

HloSharding ParseSharding(const std::string& bytes) {
  xla::OpSharding proto;
  if (!proto.ParseFromString(bytes)) {
    throw std::runtime_error(
        "the sharding's bytes are not an OpSharding message");
  }
  const auto sharding = HloSharding::FromProto(proto);
  if (!sharding.ok())
    throw std::runtime_error("the OpSharding is not one that XLA accepts");
  return *sharding;
}

std::optional<std::string> ShardingOf(const HloInstruction* hlo) {
  if (!hlo->has_sharding()) return std::nullopt;
  return hlo->sharding().ToProto().SerializeAsString();
}

const CustomCallConfig& ConfigOf(const HloInstruction* hlo) {
  return PartitionedCall(hlo->raw_backend_config_string());
}

Shardings OperandShardings(const CustomCallConfig& config,
                           const HloInstruction* hlo) {
  Shardings shardings;
  for (size_t i = 0; i < config.operand_types.size(); ++i) {
    shardings.push_back(ShardingOf(hlo->operand(static_cast<int64_t>(i))));
  }
  return shardings;
}

// Adds the sum of the results of each group of devices.
HloInstruction* AddSum(HloInstruction* part, xla::PrimitiveType type,
                       const std::vector<std::vector<int64_t>>& groups,
                       const PartitionedHlo::PartitioningState& state) {
  return state.collective_ops_creator.create_cross_partition_all_reduce(
      state.b, part, xla::spmd::MakeBinaryAdd(type, state.module), groups,
      (*state.next_channel_id)++);
}

// Adds the kernel's call to the program of one device. Returns the results that
// the traced call has.
HloInstruction* AddCall(const CustomCallConfig& config, const DeviceCall& call,
                        const std::vector<HloInstruction*>& operands,
                        const PartitionedHlo::PartitioningState& state) {
  std::vector<xla::Shape> operand_shapes;
  for (size_t i = 0; i < operands.size(); ++i) {
    operand_shapes.push_back(
        OperandShape(config, i,
                     xla::ShapeUtil::MakeShape(config.operand_types[i],
                                               call.operand_shapes[i])));
  }
  std::vector<xla::PrimitiveType> result_types;
  std::vector<xla::Shape> results;
  for (size_t i = 0; i < call.results.shapes.size(); ++i) {
    result_types.push_back(torch_xla::MakeXlaPrimitiveType(
        call.results.dtypes[i], /*device=*/nullptr));
    results.push_back(
        xla::ShapeUtil::MakeShape(result_types[i], call.results.shapes[i]));
  }
  const bool is_tuple = results.size() != 1 || config.single_result_is_tuple;
  auto made = HloInstruction::CreateCustomCall(
      ResultShape(config, xla::ShapeUtil::MakeTupleShape(results)), operands,
      config.target, operand_shapes, call.payload,
      static_cast<xla::CustomCallApiVersion>(config.api_version));
  made->set_output_to_operand_aliasing(OperandAliases(config, is_tuple));
  if (config.has_side_effect) SetHasSideEffect(made.get());
  HloInstruction* const added = state.b->AddInstruction(std::move(made));
  std::vector<HloInstruction*> traced;
  for (size_t i = 0; i < call.num_traced_results; ++i) {
    HloInstruction* result =
        is_tuple
            ? state.b->AddInstruction(HloInstruction::CreateGetTupleElement(
                  added, static_cast<int64_t>(i)))
            : added;
    if (!call.sums[i].empty()) {
      result = AddSum(result, result_types[i], call.sums[i], state);
    }
    traced.push_back(result);
  }
  if (traced.size() == 1) return traced[0];
  return state.b->AddInstruction(HloInstruction::CreateTuple(traced));
}

void Divide(SpmdPartitioningVisitor* visitor, HloInstruction* hlo) {
  const CustomCallConfig& config = ConfigOf(hlo);
  const DeviceCall call = GetPartitionFunctions().divide(
      config.partition, OperandShardings(config, hlo), ShardingOf(hlo));
  std::vector<HloInstruction*> operands;
  for (size_t i = 0; i < call.operand_shardings.size(); ++i) {
    const HloInstruction* operand = hlo->operand(static_cast<int64_t>(i));
    operands.push_back(visitor->GetPartitionedHlo(operand)
                           .Reshard(ParseSharding(call.operand_shardings[i]))
                           .hlo());
  }
  const PartitionedHlo::PartitioningState state =
      visitor->MakePartitioningState();
  HloInstruction* const result = AddCall(config, call, operands, state);
  result->set_sharding(ParseSharding(call.result_sharding));
  const PartitionedHlo partitioned(result, hlo->shape(), state);
  visitor->SetPartitionedHlo(hlo, partitioned.Reshard(hlo->sharding()));
}

class HostPartitioner : public xla::CustomCallPartitioner {
 public:
  HloSharding PropagateUserSharding(
      const HloInstruction* instruction, const HloInstruction* /*user*/,
      const HloSharding& sharding) const override {
    try {
      return ParseSharding(GetPartitionFunctions().propagate(
          ConfigOf(instruction).partition,
          sharding.ToProto().SerializeAsString()));
    } catch (const std::exception&) {
      return sharding;  // Partition will fail with the reason
    }
  }

  std::optional<HloSharding> InferShardingFromOperands(
      const HloInstruction* instruction) const override {
    try {
      const CustomCallConfig& config = ConfigOf(instruction);
      const std::optional<std::string> inferred = GetPartitionFunctions().infer(
          config.partition, OperandShardings(config, instruction));
      if (!inferred) return std::nullopt;
      return ParseSharding(*inferred);
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  bool IsCustomCallShardable(
      const HloInstruction* /*instruction*/) const override {
    return true;
  }

  bool CanSideEffectingHaveReplicatedSharding() const override { return true; }

  absl::Status Partition(SpmdPartitioningVisitor* visitor,
                         HloInstruction* hlo) const override {
    try {
      Divide(visitor, hlo);
      return absl::Status();
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(error.what());
    }
  }
};

}  // namespace

void RegisterHostPartitioner() {
  xla::RegisterCustomCallPartitioner(kPartitionedTarget,
                                     std::make_unique<HostPartitioner>());
}

}  // namespace torch_xla_ext
