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
    const uint64_t operand = one->Numbers(instruction::kOperandIds)[0];
    const uint64_t from =
        ProtobufMessage(shapes_.at(operand)).Number(hlo::shape::kElementType);
    const uint64_t to = ElementType(*one);
    ProtobufMessage fields;
    for (const uint32_t field :
         {instruction::kMetadata, instruction::kSharding}) {
      if (one->Has(field)) fields.SetBytes(field, one->Bytes(field));
    }
    if (!is_of_numbers_ && RoundsNumber(*one, from)) {
      one->SetNumbers(instruction::kOperandIds,
                      {Rounded(operand, from, to == hlo::kF16, fields)});
    } else if (const auto type = Between(from, to)) {
      ProtobufMessage shape(one->Bytes(instruction::kShape));
      shape.SetNumber(hlo::shape::kElementType, *type);
      one->SetNumbers(instruction::kOperandIds,
                      {Add("convert", shape.Serialize(), {operand}, fields)});
    }
  }

  // Returns a scalar of the type `from`, rounded to float16 or bfloat16.
  uint64_t Rounded(uint64_t x, uint64_t from, bool is_half,
                   const ProtobufMessage& fields) {
    const std::string type = shapes_.at(x);
    ProtobufMessage bits = fields;
    bits.SetNumber(instruction::kExponentBits, is_half ? 5 : 8);
    bits.SetNumber(instruction::kMantissaBits, is_half ? 10 : 7);
    const uint64_t rounded = Add("reduce-precision", type, {x}, bits);
    if (!is_half) return rounded;
    // It is 0 for float16's subnormal numbers, which are multiples of 2^-24.
    const uint64_t scale = AddNumber(1 << 24, from, fields);
    const uint64_t scaled = Add("multiply", type, {x, scale}, fields);
    const uint64_t whole = Add("round-nearest-even", type, {scaled}, fields);
    const uint64_t multiple = Add("divide", type, {whole, scale}, fields);
    ProtobufMessage pred(type), equal = fields;
    pred.SetNumber(hlo::shape::kElementType, hlo::kPred);
    equal.SetBytes(instruction::kComparisonDirection, "EQ");
    const uint64_t is_zero = Add("compare", pred.Serialize(),
                                 {rounded, AddNumber(0, from, fields)}, equal);
    return Add("select", type, {is_zero, multiple, rounded}, fields);
  }

  bool is_of_numbers_ = false;
};

}  // namespace

std::optional<std::string> CorrectConversions(const std::string& module) {
  return Conversions(module).Run();
}

}  // namespace torch_xla_ext
