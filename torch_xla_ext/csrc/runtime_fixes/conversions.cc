#include "torch_xla_ext/csrc/runtime_fixes/conversions.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {
namespace {

namespace computation = hlo::computation;
namespace instruction = hlo::instruction;

uint64_t ElementType(const ProtobufMessage& one) {
  return ProtobufMessage(one.Bytes(instruction::kShape))
      .Number(hlo::shape::kElementType);
}

bool IsFloat(uint64_t type) {
  return type == hlo::kF16 || type == hlo::kBf16 || type == hlo::kF32 ||
         type == hlo::kF64;
}

// The type between two others, if there is to be one.
std::optional<uint64_t> Between(uint64_t from, uint64_t to) {
  const bool is_complex = to == hlo::kC64 || to == hlo::kC128;
  if (from == hlo::kPred && (IsFloat(to) || is_complex)) return hlo::kU8;
  if (!IsFloat(from)) return std::nullopt;
  if (to == hlo::kU8) return hlo::kS64;
  if (to == hlo::kS8 || to == hlo::kS16) return hlo::kS32;
  return std::nullopt;
}

// A convert to `type` of the operand of `one`, a convert, which takes it as its
// operand instead.
std::string FirstConvert(ProtobufMessage& one, uint64_t type, uint64_t id) {
  ProtobufMessage first = one;
  ProtobufMessage shape(one.Bytes(instruction::kShape));
  shape.SetNumber(hlo::shape::kElementType, type);
  first.SetBytes(instruction::kName, "conversion." + std::to_string(id));
  first.SetBytes(instruction::kShape, shape.Serialize());
  first.SetNumber(instruction::kId, id);
  one.SetNumbers(instruction::kOperandIds, {id});
  return first.Serialize();
}

}  // namespace

std::optional<std::string> CorrectConversions(const std::string& module) {
  ProtobufMessage program(module);
  uint64_t last_id = 0;
  std::unordered_map<uint64_t, uint64_t> types;
  for (const std::string_view text : program.All(hlo::module::kComputations)) {
    const ProtobufMessage message(text);
    last_id = std::max(last_id, message.Number(computation::kId));
    for (const std::string_view inner :
         message.All(computation::kInstructions)) {
      const ProtobufMessage one(inner);
      const uint64_t id = one.Number(instruction::kId);
      last_id = std::max(last_id, id);
      types[id] = ElementType(one);
    }
  }
  bool is_changed = false;
  const auto corrected = [&](std::string_view text) {
    ProtobufMessage message(text);
    std::vector<std::string> instructions;
    for (const std::string_view inner :
         message.All(computation::kInstructions)) {
      ProtobufMessage one(inner);
      if (one.Bytes(instruction::kOpcode) == "convert") {
        const uint64_t from =
            types.at(one.Numbers(instruction::kOperandIds)[0]);
        if (const auto type = Between(from, ElementType(one))) {
          instructions.push_back(FirstConvert(one, *type, ++last_id));
          is_changed = true;
        }
      }
      instructions.push_back(one.Serialize());
    }
    message.Replace(computation::kInstructions, instructions);
    return message.Serialize();
  };
  program.Transform(hlo::module::kComputations, corrected);
  if (!is_changed) return std::nullopt;
  return program.Serialize();
}

}  // namespace torch_xla_ext
