#include "torch_xla_ext/csrc/runtime_fixes/quotients.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {
namespace {

namespace instruction = hlo::instruction;
namespace shape = hlo::shape;

// Operations that XLA may move from between two divisions.
bool OnlyMoves(std::string_view opcode) {
  return opcode == "broadcast" || opcode == "convert" || opcode == "copy" ||
         opcode == "reshape" || opcode == "slice" || opcode == "transpose";
}

class Quotients : public ProgramPass {
 public:
  explicit Quotients(const std::string& serialized)
      : ProgramPass(serialized, "quotient") {}

 private:
  void LookAt(const ProtobufMessage& one) override {
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    const std::vector<uint64_t> operands =
        one.Numbers(instruction::kOperandIds);
    const bool is_quotient = opcode == "divide" && IsFloatingPoint(one);
    const bool is_of_quotient = std::any_of(
        operands.begin(), operands.end(),
        [this](uint64_t operand) { return quotients_.count(operand) != 0; });
    const bool is_moved = OnlyMoves(opcode) && is_of_quotient;
    has_quotient_of_quotient_ |= is_quotient && is_of_quotient;
    if (is_quotient || is_moved) {
      quotients_.insert(one.Number(instruction::kId));
    }
  }

  bool IsNeeded() const override { return has_quotient_of_quotient_; }

  void Change(ProtobufMessage* one) override {
    if (one->Bytes(instruction::kOpcode) != "divide" ||
        !IsFloatingPoint(*one)) {
      return;
    }
    std::vector<uint64_t> operands = one->Numbers(instruction::kOperandIds);
    for (uint64_t& operand : operands) {
      if (quotients_.count(operand) != 0) operand = Separated(*one, operand);
    }
    one->SetNumbers(instruction::kOperandIds, operands);
  }

  static bool IsFloatingPoint(const ProtobufMessage& one) {
    return hlo::IsFloat(ProtobufMessage(one.Bytes(instruction::kShape))
                            .Number(shape::kElementType));
  }

  uint64_t Separated(const ProtobufMessage& one, uint64_t operand) {
    const std::string type = shapes_.at(operand);
    ProtobufMessage bits(type), comparison;
    bits.SetNumber(shape::kElementType, hlo::kPred);
    comparison.SetBytes(instruction::kComparisonDirection, "NE");
    ProtobufMessage parts[3] = {comparison, {}, {}};
    for (ProtobufMessage& part : parts) {
      if (one.Has(instruction::kSharding)) {
        part.SetBytes(instruction::kSharding,
                      one.Bytes(instruction::kSharding));
      }
    }
    const uint64_t is_nan = Add("compare", bits.Serialize(), {operand, operand},
                                std::move(parts[0]));
    const uint64_t nan =
        Add("add", type, {operand, operand}, std::move(parts[1]));
    return Add("select", type, {is_nan, nan, operand}, std::move(parts[2]));
  }

  std::unordered_set<uint64_t> quotients_;
  bool has_quotient_of_quotient_ = false;
};

}  // namespace

std::optional<std::string> SeparateQuotients(const std::string& module) {
  return Quotients(module).Run();
}

}  // namespace torch_xla_ext
