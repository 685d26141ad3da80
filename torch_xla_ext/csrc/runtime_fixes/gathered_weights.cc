#include "torch_xla_ext/csrc/runtime_fixes/gathered_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"
#include "torch_xla_ext/csrc/runtime_fixes/sharding_call.h"
#include "torch_xla_ext/csrc/runtime_fixes/tiling.h"

namespace torch_xla_ext {
namespace {

namespace computation = hlo::computation;
namespace instruction = hlo::instruction;
namespace module = hlo::module;
namespace shape = hlo::shape;

bool IsInteger(uint64_t type) { return type >= hlo::kS8 && type <= hlo::kU8; }

class GatheredWeights {
 public:
  explicit GatheredWeights(const std::string& serialized)
      : module_(serialized) {}

  std::optional<std::string> Run() {
    for (const std::string_view text : module_.All(module::kComputations)) {
      const ProtobufMessage message(text);
      for (const std::string_view inner :
           message.All(computation::kInstructions)) {
        const ProtobufMessage one(inner);
        last_id_ = std::max(last_id_, one.Number(instruction::kId));
        if (IsManual(one.Bytes(instruction::kSharding))) return std::nullopt;
        has_tiles_ = has_tiles_ ||
                     (one.Bytes(instruction::kOpcode) == "parameter" &&
                      TilingOf(one.Bytes(instruction::kSharding)).has_value());
      }
    }
    if (!has_tiles_) return std::nullopt;
    module_.Transform(module::kComputations,
                      [this](std::string_view text) { return Gathered(text); });
    if (!is_changed_) return std::nullopt;
    return module_.Serialize();
  }

 private:
  // A parameter, perhaps after operations that keep its elements.
  struct Value {
    uint64_t parameter;
    std::optional<Tiling> tiling;  // unless its dimensions are others
  };

  std::string Gathered(std::string_view text) {
    values_.clear();
    types_.clear();
    batch_.clear();
    batch_parameters_.clear();
    std::vector<ProtobufMessage> all;
    ProtobufMessage message(text);
    for (const std::string_view inner :
         message.All(computation::kInstructions)) {
      all.emplace_back(inner);
      Follow(all.back());
    }
    if (batch_.empty()) return std::string(text);
    instructions_.clear();
    bool is_changed = false;
    for (ProtobufMessage& one : all) {
      is_changed |= GatherOperands(&one);
      instructions_.push_back(one.Serialize());
    }
    if (!is_changed) return std::string(text);
    is_changed_ = true;
    message.Replace(computation::kInstructions, instructions_);
    return message.Serialize();
  }

  // Records the properties of an instruction, whose operands have been visited.
  void Follow(const ProtobufMessage& one) {
    const uint64_t id = one.Number(instruction::kId);
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    const Sizes operands = one.Numbers(instruction::kOperandIds);
    types_.emplace(id, one.Bytes(instruction::kShape));
    if (opcode == "parameter") {
      values_[id] = {id, TilingOf(one.Bytes(instruction::kSharding))};
      if (IsInteger(TypeOf(id))) NoteBatch(values_[id]);
    } else if (opcode == "dot" || opcode == "convolution") {
      const auto left = values_.find(operands[0]);
      const ProtobufMessage dimensions(
          one.Bytes(instruction::kDotDimensionNumbers));
      if (left != values_.end() && RankOf(left->second.parameter) > 2 &&
          !dimensions.Has(hlo::dot::kLeftBatch)) {
        NoteBatch(values_.at(left->second.parameter));
      }
    } else if (operands.size() == 1 && values_.count(operands[0]) != 0) {
      Value value = values_.at(operands[0]);
      if (opcode == "transpose") {
        if (value.tiling) {
          value.tiling =
              value.tiling->Transposed(one.Numbers(instruction::kDimensions));
        }
      } else if (opcode == "reshape") {
        value.tiling.reset();
      } else if (opcode != "convert" && opcode != "copy" &&
                 opcode != "reverse") {
        return;
      }
      values_[id] = std::move(value);
    }
  }

  void NoteBatch(const Value& parameter) {
    if (parameter.tiling && parameter.tiling->rank() > 0 &&
        parameter.tiling->sizes[0] > 1 && !IsBatch(parameter.parameter)) {
      batch_.push_back(parameter.tiling->IndicesAlong(0));
      batch_parameters_.push_back(parameter.parameter);
    }
  }

  bool GatherOperands(ProtobufMessage* one) {
    const std::string_view opcode = one->Bytes(instruction::kOpcode);
    const bool is_dot = opcode == "dot";
    if (!is_dot && opcode != "convolution") return false;
    Sizes operands = one->Numbers(instruction::kOperandIds);
    // A product of two weights does not depend on examples.
    if (IsWeight(operands[0]) && IsWeight(operands[1])) return false;
    bool is_changed = false;
    const ProtobufMessage dimensions(
        one->Bytes(instruction::kDotDimensionNumbers));
    for (const size_t i : {0, 1}) {
      if (!IsWeight(operands[i])) continue;
      const Tiling& tiling = *values_.at(operands[i]).tiling;
      std::vector<bool> is_gathered = DividedAsTheBatch(tiling);
      if (is_dot) {
        for (const uint64_t dimension : dimensions.Numbers(
                 i == 0 ? hlo::dot::kLeftBatch : hlo::dot::kRightBatch)) {
          is_gathered[dimension] = false;
        }
      }
      if (std::find(is_gathered.begin(), is_gathered.end(), true) ==
          is_gathered.end()) {
        continue;
      }
      operands[i] = Add(operands[i], tiling.Gathered(is_gathered).Serialize());
      is_changed = true;
    }
    if (is_changed) one->SetNumbers(instruction::kOperandIds, operands);
    return is_changed;
  }

  bool IsWeight(uint64_t id) const {
    const auto found = values_.find(id);
    return found != values_.end() && found->second.tiling &&
           hlo::IsFloat(TypeOf(id)) && !IsBatch(found->second.parameter);
  }

  bool IsBatch(uint64_t parameter) const {
    return std::find(batch_parameters_.begin(), batch_parameters_.end(),
                     parameter) != batch_parameters_.end();
  }

  // Whether devices whose shards differ along a dimension have other examples.
  std::vector<bool> DividedAsTheBatch(const Tiling& tiling) const {
    std::vector<bool> result(tiling.rank(), false);
    for (size_t i = 0; i < tiling.devices.size(); ++i) {
      const Sizes at = Coordinates(i, tiling.sizes);
      for (size_t dimension = 0; dimension < tiling.rank(); ++dimension) {
        if (at[dimension] == 0) continue;
        Sizes first = at;
        first[dimension] = 0;
        const uint64_t other = tiling.devices[IndexOf(first, tiling.sizes)];
        for (const Sizes& indices : batch_) {
          if (indices.size() == tiling.devices.size() &&
              indices[tiling.devices[i]] != indices[other]) {
            result[dimension] = true;
          }
        }
      }
    }
    return result;
  }

  uint64_t Add(uint64_t operand, const std::string& sharding) {
    const uint64_t id = ++last_id_;
    instructions_.push_back(
        SerializedShardingCall(id, operand, types_.at(operand), sharding, ""));
    return id;
  }

  uint64_t TypeOf(uint64_t id) const {
    return ProtobufMessage(types_.at(id)).Number(shape::kElementType);
  }
  size_t RankOf(uint64_t id) const {
    return ProtobufMessage(types_.at(id)).Numbers(shape::kDimensions).size();
  }

  ProtobufMessage module_;
  uint64_t last_id_ = 0;
  bool has_tiles_ = false, is_changed_ = false;
  // Of the computation that is being changed.
  std::unordered_map<uint64_t, Value> values_;
  std::unordered_map<uint64_t, std::string> types_;
  std::vector<Sizes> batch_;  // the indices of devices' examples
  Sizes batch_parameters_;
  std::vector<std::string> instructions_;
};

}  // namespace

std::optional<std::string> GatherWeights(const std::string& module) {
  return GatheredWeights(module).Run();
}

}  // namespace torch_xla_ext
