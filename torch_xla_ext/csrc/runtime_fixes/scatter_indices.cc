#include "torch_xla_ext/csrc/runtime_fixes/scatter_indices.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {
namespace {

namespace computation = hlo::computation;
namespace instruction = hlo::instruction;
namespace literal = hlo::literal;
namespace module = hlo::module;
namespace shape = hlo::shape;
constexpr int64_t kLargestIndex = std::numeric_limits<int32_t>::max();

class Scatters {
 public:
  explicit Scatters(const std::string& serialized) : module_(serialized) {
    for (const std::string_view text : module_.All(module::kComputations)) {
      const ProtobufMessage message(text);
      for (const std::string_view inner :
           message.All(computation::kInstructions)) {
        const ProtobufMessage one(inner);
        last_id_ = std::max(last_id_, one.Number(instruction::kId));
        is_sharded_ |= one.Has(instruction::kSharding);
        has_scatter_ |= one.Bytes(instruction::kOpcode) == "scatter";
      }
    }
  }

  std::optional<std::string> Run() {
    if (!is_sharded_ || !has_scatter_) return std::nullopt;
    module_.Transform(module::kComputations, [this](std::string_view text) {
      return WithNarrowIndices(text);
    });
    if (!is_changed_) return std::nullopt;
    return module_.Serialize();
  }

 private:
  std::string WithNarrowIndices(std::string_view text) {
    ProtobufMessage message(text);
    const std::vector<std::string_view> all =
        message.All(computation::kInstructions);
    shapes_.clear();
    instructions_.clear();
    for (const std::string_view inner : all) {
      ProtobufMessage one(inner);
      shapes_.emplace(one.Number(instruction::kId),
                      one.Bytes(instruction::kShape));
      if (one.Bytes(instruction::kOpcode) == "scatter") {
        Narrow(&one);
        instructions_.push_back(one.Serialize());
      } else {
        instructions_.emplace_back(inner);
      }
    }
    message.Replace(computation::kInstructions, instructions_);
    return message.Serialize();
  }

  // The operands of a scatter are as many tensors as it has updates, with the
  // indices between them.
  void Narrow(ProtobufMessage* scatter) {
    std::vector<uint64_t> operands = scatter->Numbers(instruction::kOperandIds);
    const size_t place = operands.size() / 2;
    const ProtobufMessage type(shapes_.at(operands[place]));
    const std::vector<uint64_t> sizes =
        ProtobufMessage(shapes_.at(operands[0])).Numbers(shape::kDimensions);
    const bool fits =
        std::all_of(sizes.begin(), sizes.end(), [](uint64_t size) {
          return size <= static_cast<uint64_t>(kLargestIndex);
        });
    if (type.Number(shape::kElementType) != hlo::kS64 || !fits) return;
    is_changed_ = true;
    const std::string wide = type.Serialize();
    ProtobufMessage narrow = type;
    narrow.SetNumber(shape::kElementType, hlo::kS32);
    // Not by a clamp: XLA's passes do not expect its operands of other sizes.
    const uint64_t raised =
        Add("maximum", wide, {operands[place], Everywhere(-1, wide)});
    const uint64_t clamped =
        Add("minimum", wide, {raised, Everywhere(kLargestIndex, wide)});
    operands[place] = Add("convert", narrow.Serialize(), {clamped});
    scatter->SetNumbers(instruction::kOperandIds, operands);
  }

  uint64_t Everywhere(int64_t value, const std::string& shape) {
    ProtobufMessage type;
    type.SetNumber(shape::kElementType, hlo::kS64);
    type.SetBytes(shape::kLayout, "");
    ProtobufMessage literal;
    literal.SetBytes(literal::kShape, type.Serialize());
    literal.SetNumbers(literal::kS64s, {static_cast<uint64_t>(value)});
    const uint64_t number =
        Add("constant", type.Serialize(), {}, literal.Serialize());
    return Add("broadcast", shape, {number});
  }

  uint64_t Add(std::string_view opcode, const std::string& shape,
               const std::vector<uint64_t>& operands,
               const std::string& literal = "") {
    ProtobufMessage message;
    const uint64_t id = ++last_id_;
    message.SetBytes(instruction::kName,
                     "index." + std::string(opcode) + "." + std::to_string(id));
    message.SetBytes(instruction::kOpcode, opcode);
    message.SetBytes(instruction::kShape, shape);
    if (!literal.empty()) message.SetBytes(instruction::kLiteral, literal);
    message.SetNumber(instruction::kId, id);
    if (!operands.empty())
      message.SetNumbers(instruction::kOperandIds, operands);
    instructions_.push_back(message.Serialize());
    return id;
  }

  ProtobufMessage module_;
  uint64_t last_id_ = 0;
  bool is_sharded_ = false, has_scatter_ = false, is_changed_ = false;
  // Of the computation that is being changed.
  std::unordered_map<uint64_t, std::string> shapes_;
  std::vector<std::string> instructions_;
};

}  // namespace

std::optional<std::string> NarrowScatterIndices(const std::string& module) {
  return Scatters(module).Run();
}

}  // namespace torch_xla_ext
