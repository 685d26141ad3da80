#include "torch_xla_ext/csrc/runtime_fixes/conversions.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {
namespace {

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

class Conversions : public ProgramPass {
 public:
  explicit Conversions(const std::string& serialized)
      : ProgramPass(serialized, "conversion") {}

 private:
  void Begin(const ProtobufMessage& message) override {
    const std::vector<std::string_view> all =
        message.All(hlo::computation::kInstructions);
    is_of_numbers_ =
        std::none_of(all.begin(), all.end(), [](std::string_view inner) {
          return HasDimensions(ProtobufMessage(inner));
        });
  }

  void Change(ProtobufMessage* one) override {
    if (one->Bytes(instruction::kOpcode) != "convert") return;
    const uint64_t from =
        ProtobufMessage(shapes_.at(one->Numbers(instruction::kOperandIds)[0]))
            .Number(hlo::shape::kElementType);
    if (const auto first = Before(*one, from, last_id_ + 1, is_of_numbers_)) {
      AddSerialized(first->Serialize());
    }
  }

  bool is_of_numbers_ = false;
};

}  // namespace

std::optional<std::string> CorrectConversions(const std::string& module) {
  return Conversions(module).Run();
}

}  // namespace torch_xla_ext
