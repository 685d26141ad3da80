#include "torch_xla_ext/csrc/runtime_fixes/partition_pass.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/sharding_call.h"

namespace torch_xla_ext {
namespace {

namespace instruction = hlo::instruction;

uint64_t DevicesOf(std::string_view serialized) {
  const ProtobufMessage sharding(serialized);
  uint64_t devices = 1;
  for (const uint64_t size :
       sharding.Numbers(hlo::sharding::kTileAssignmentDimensions)) {
    devices *= size;
  }
  for (const std::string_view part :
       sharding.All(hlo::sharding::kTupleShardings)) {
    devices = std::max(devices, DevicesOf(part));
  }
  return devices;
}

std::string SerializedWhole(uint64_t id, uint64_t operand,
                            const std::string& shape, Sizes dimensions) {
  std::sort(dimensions.begin(), dimensions.end());
  std::string numbers;
  for (const uint64_t dimension : dimensions) {
    numbers += (numbers.empty() ? "" : ",") + std::to_string(dimension);
  }
  return SerializedShardingCall(
      id, operand, shape, "",
      numbers.empty() ? "" : "unspecified_dims=[" + numbers + "]");
}

}  // namespace

void PartitionPass::LookAt(const ProtobufMessage& one) {
  devices_ = std::max(devices_, DevicesOf(one.Bytes(instruction::kSharding)));
}

void PartitionPass::Rewrite(ProtobufMessage one) {
  ProgramPass::Rewrite(std::move(one));
  if (following_.empty()) return;
  instructions_.push_back(std::exchange(following_, {}));
}

Sizes PartitionPass::SizesOf(uint64_t operand) const {
  return ProtobufMessage(shapes_.at(operand)).Numbers(hlo::shape::kDimensions);
}

uint64_t PartitionPass::WholeIn(uint64_t operand, const Sizes& dimensions) {
  return WholeBut(operand, Others(operand, dimensions));
}

uint64_t PartitionPass::WholeBut(uint64_t operand, Sizes dimensions) {
  const std::string& shape = shapes_.at(operand);
  const uint64_t id = AddSerialized(
      SerializedWhole(last_id_ + 1, operand, shape, std::move(dimensions)));
  shapes_.emplace(id, shape);
  return id;
}

void PartitionPass::GatherResult(ProtobufMessage* one, const Sizes& others) {
  const uint64_t id = one->Number(instruction::kId);
  one->SetNumber(instruction::kId, ++last_id_);
  following_ = SerializedWhole(id, last_id_, shapes_.at(id), others);
}

Sizes PartitionPass::Others(uint64_t operand, const Sizes& dimensions) const {
  Sizes others;
  for (uint64_t i = 0; i < SizesOf(operand).size(); ++i) {
    if (std::find(dimensions.begin(), dimensions.end(), i) ==
        dimensions.end()) {
      others.push_back(i);
    }
  }
  return others;
}

}  // namespace torch_xla_ext
