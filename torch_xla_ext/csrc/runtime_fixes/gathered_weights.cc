#include "torch_xla_ext/csrc/runtime_fixes/gathered_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"
#include "torch_xla_ext/csrc/runtime_fixes/sharding_call.h"
#include "torch_xla_ext/csrc/runtime_fixes/tiling.h"

namespace torch_xla_ext {
namespace {

namespace computation = hlo::computation;
namespace instruction = hlo::instruction;
namespace shape = hlo::shape;

bool IsInteger(uint64_t type) { return type >= hlo::kS8 && type <= hlo::kU8; }

// The second product of a weight reuses the gathered weight of the first one if
// at most one kKeptPart-th of all weights' bytes is gathered between them. That
// holds for the last layers, whose gradients are computed first.
constexpr uint64_t kKeptPart = 8;

class GatheredWeights : public ProgramPass {
 public:
  explicit GatheredWeights(const std::string& serialized)
      : ProgramPass(serialized, "weight") {}

 private:
  bool IsNeeded() const override { return is_divided_ && !has_manual_region_; }

  // A parameter, directly or after operations that keep its elements.
  struct Value {
    std::string_view instruction;
    uint64_t parameter;
    std::optional<Tiling> tiling;  // none if the dimensions were reshaped
  };

  // An operand that is gathered for its product.
  struct Operand {
    size_t index;
    uint64_t id;
    std::vector<bool> is_gathered;  // by dimension
  };

  // A parameter's last gather.
  struct LastGather {
    uint64_t bytes_before;  // bytes gathered before its last use
    bool is_copy = false;
    // Maps values of the parameter to those of the gathered copy.
    std::unordered_map<uint64_t, uint64_t> copies;
  };

  void Begin(const ProtobufMessage& message) override {
    values_.clear();
    batch_.clear();
    batch_parameters_.clear();
    gathers_.clear();
    gathered_.clear();
    gathered_bytes_ = all_bytes_ = 0;
    std::vector<ProtobufMessage> all;
    for (const std::string_view inner :
         message.All(computation::kInstructions)) {
      all.emplace_back(inner);
      Follow(inner, all.back());
    }
    if (batch_.empty()) return;
    std::unordered_set<uint64_t> weights;
    for (const ProtobufMessage& one : all) {
      const auto& operands = gathered_[one.Number(instruction::kId)] =
          GatheredOperands(one);
      for (const Operand& operand : operands) {
        const uint64_t parameter = values_.at(operand.id).parameter;
        if (weights.insert(parameter).second) all_bytes_ += BytesOf(parameter);
      }
    }
  }

  // Derives the properties of an instruction from those of its operands.
  void Follow(std::string_view serialized, const ProtobufMessage& one) {
    const uint64_t id = one.Number(instruction::kId);
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    const Sizes operands = one.Numbers(instruction::kOperandIds);
    shapes_.emplace(id, one.Bytes(instruction::kShape));
    if (opcode == "parameter") {
      values_[id] = {serialized, id,
                     TilingOf(one.Bytes(instruction::kSharding))};
      if (IsInteger(TypeOf(id))) NoteBatch(values_[id]);
    } else if (opcode == "dot" || opcode == "convolution") {
      const auto left = values_.find(operands[0]);
      const ProtobufMessage dimensions(
          one.Bytes(instruction::kDotDimensionNumbers));
      if (left != values_.end() && SizesOf(left->second.parameter).size() > 2 &&
          !dimensions.Has(hlo::dot::kLeftBatch)) {
        NoteBatch(values_.at(left->second.parameter));
      }
    } else if (operands.size() == 1 && values_.count(operands[0]) != 0) {
      Value value = values_.at(operands[0]);
      value.instruction = serialized;
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

  // The operands of a product that are gathered for it.
  std::vector<Operand> GatheredOperands(const ProtobufMessage& one) const {
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    const bool is_dot = opcode == "dot";
    if (!is_dot && opcode != "convolution") return {};
    const Sizes operands = one.Numbers(instruction::kOperandIds);
    // A product of two weights does not involve examples.
    if (IsWeight(operands[0]) && IsWeight(operands[1])) return {};
    std::vector<Operand> result;
    const ProtobufMessage dimensions(
        one.Bytes(instruction::kDotDimensionNumbers));
    for (const size_t i : {0, 1}) {
      if (!IsWeight(operands[i])) continue;
      std::vector<bool> is_gathered =
          DividedAsTheBatch(*values_.at(operands[i]).tiling);
      if (is_dot) {
        for (const uint64_t dimension : dimensions.Numbers(
                 i == 0 ? hlo::dot::kLeftBatch : hlo::dot::kRightBatch)) {
          is_gathered[dimension] = false;
        }
      }
      if (std::find(is_gathered.begin(), is_gathered.end(), true) !=
          is_gathered.end()) {
        result.push_back({i, operands[i], std::move(is_gathered)});
      }
    }
    return result;
  }

  void Change(ProtobufMessage* one) override {
    const auto found = gathered_.find(one->Number(instruction::kId));
    if (found == gathered_.end()) return;
    Sizes operands = one->Numbers(instruction::kOperandIds);
    for (const auto& [i, id, is_gathered] : found->second) {
      const uint64_t shards = ToGather(id);  // ToGather may add instructions
      operands[i] = AddSerialized(SerializedShardingCall(
          last_id_ + 1, shards, shapes_.at(id),
          values_.at(id).tiling->Gathered(is_gathered).Serialize(), ""));
    }
    one->SetNumbers(instruction::kOperandIds, operands);
  }

  // The value `id` of a parameter, which is gathered for the next product. If
  // the parameter's last gather is long ago, the value of a copy instead, so
  // that XLA gathers it again rather than keeping it.
  uint64_t ToGather(uint64_t id) {
    const uint64_t parameter = values_.at(id).parameter;
    const auto [found, is_first] = gathers_.try_emplace(parameter);
    LastGather& gather = found->second;
    if (is_first ||
        gathered_bytes_ - gather.bytes_before > all_bytes_ / kKeptPart) {
      gather.is_copy = !is_first;
      gather.copies.clear();
      gathered_bytes_ += BytesOf(parameter);
    }
    gather.bytes_before = gathered_bytes_;
    return gather.is_copy ? Copied(id, &gather.copies) : id;
  }

  // The corresponding value of a copy of the parameter, after an optimization
  // barrier.
  uint64_t Copied(uint64_t id, std::unordered_map<uint64_t, uint64_t>* copies) {
    if (const auto found = copies->find(id); found != copies->end()) {
      return found->second;
    }
    ProtobufMessage copy(values_.at(id).instruction);
    uint64_t operand = id;
    if (copy.Bytes(instruction::kOpcode) == "parameter") {
      ProtobufMessage barrier;
      barrier.SetBytes(instruction::kOpcode, "opt-barrier");
      barrier.SetBytes(instruction::kShape, shapes_.at(id));
      barrier.SetBytes(instruction::kSharding,
                       copy.Bytes(instruction::kSharding));
      copy = std::move(barrier);
    } else {
      operand = Copied(copy.Numbers(instruction::kOperandIds)[0], copies);
    }
    const uint64_t copy_id = last_id_ + 1;
    copy.SetNumber(instruction::kId, copy_id);
    copy.SetNumbers(instruction::kOperandIds, {operand});
    copy.SetBytes(instruction::kName, "weight." + std::to_string(copy_id));
    copies->emplace(id, copy_id);
    return AddSerialized(copy.Serialize());
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

  // For each dimension, whether devices whose shards differ along it have
  // different examples.
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

  uint64_t TypeOf(uint64_t id) const {
    return ProtobufMessage(shapes_.at(id)).Number(shape::kElementType);
  }
  Sizes SizesOf(uint64_t id) const {
    return ProtobufMessage(shapes_.at(id)).Numbers(shape::kDimensions);
  }
  uint64_t BytesOf(uint64_t id) const { return hlo::BytesOf(shapes_.at(id)); }

  // These describe the computation that is being changed.
  std::unordered_map<uint64_t, Value> values_;
  std::unordered_map<uint64_t, std::vector<Operand>> gathered_;
  std::unordered_map<uint64_t, LastGather> gathers_;
  uint64_t gathered_bytes_ = 0, all_bytes_ = 0;
  std::vector<Sizes> batch_;  // for each device, the index of its examples
  Sizes batch_parameters_;
};

}  // namespace

std::optional<std::string> GatherWeights(const std::string& module) {
  return GatheredWeights(module).Run();
}

}  // namespace torch_xla_ext
