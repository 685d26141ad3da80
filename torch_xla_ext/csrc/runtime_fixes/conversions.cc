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

// The intermediate type of a conversion, if it needs one.
std::optional<uint64_t> Between(uint64_t from, uint64_t to) {
  const bool is_complex = to == hlo::kC64 || to == hlo::kC128;
  if (from == hlo::kPred && (hlo::IsFloat(to) || is_complex)) return hlo::kU8;
  if (!hlo::IsFloat(from)) return std::nullopt;
  if (to == hlo::kU8) return hlo::kS64;
  if (to == hlo::kS8 || to == hlo::kS16) return hlo::kS32;
  return std::nullopt;
}

bool HasDimensions(const ProtobufMessage& one) {
  return ProtobufMessage(one.Bytes(instruction::kShape))
      .Has(hlo::shape::kDimensions);
}

// Whether a convert rounds a scalar to 16 bits.
bool RoundsNumber(const ProtobufMessage& one, uint64_t from) {
  const uint64_t to = ElementType(one);
  return !HasDimensions(one) && (from == hlo::kF32 || from == hlo::kF64) &&
         (to == hlo::kF16 || to == hlo::kBf16);
}

// Returns a new operation on the operand of `one`, a convert, and makes its
// result the operand of `one`.
ProtobufMessage First(ProtobufMessage& one, std::string_view opcode,
                      uint64_t type, uint64_t id) {
  ProtobufMessage first = one;
  ProtobufMessage shape(one.Bytes(instruction::kShape));
  shape.SetNumber(hlo::shape::kElementType, type);
  first.SetBytes(instruction::kName, "conversion." + std::to_string(id));
  first.SetBytes(instruction::kOpcode, opcode);
  first.SetBytes(instruction::kShape, shape.Serialize());
  first.SetNumber(instruction::kId, id);
  one.SetNumbers(instruction::kOperandIds, {id});
  return first;
}

// The operation that must come before a convert, if any. `is_of_numbers` is
// true in a computation on scalars, such as a reduction's.
std::optional<ProtobufMessage> Before(ProtobufMessage& one, uint64_t from,
                                      uint64_t id, bool is_of_numbers) {
  if (!is_of_numbers && RoundsNumber(one, from)) {
    const bool is_half = ElementType(one) == hlo::kF16;
    ProtobufMessage first = First(one, "reduce-precision", from, id);
    first.SetNumber(instruction::kExponentBits, is_half ? 5 : 8);
    first.SetNumber(instruction::kMantissaBits, is_half ? 10 : 7);
    return first;
  }
  const auto type = Between(from, ElementType(one));
  if (!type) return std::nullopt;
  return First(one, "convert", *type, id);
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
    const std::vector<std::string_view> all =
        message.All(computation::kInstructions);
    const bool is_of_numbers =
        std::none_of(all.begin(), all.end(), [](std::string_view inner) {
          return HasDimensions(ProtobufMessage(inner));
        });
    std::vector<std::string> instructions;
    for (const std::string_view inner : all) {
      ProtobufMessage one(inner);
      if (one.Bytes(instruction::kOpcode) == "convert") {
        const uint64_t from =
            types.at(one.Numbers(instruction::kOperandIds)[0]);
        if (const auto first = Before(one, from, last_id + 1, is_of_numbers)) {
          instructions.push_back(first->Serialize());
          ++last_id;
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
