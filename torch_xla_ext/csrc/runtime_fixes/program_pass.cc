#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"

#include <algorithm>
#include <utility>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/sharding_call.h"
#include "torch_xla_ext/csrc/runtime_fixes/tiling.h"

namespace torch_xla_ext {

namespace computation = hlo::computation;
namespace instruction = hlo::instruction;
namespace module = hlo::module;

std::optional<std::string> ProgramPass::Run() {
  const std::vector<std::string_view> all = module_.All(module::kComputations);
  for (const std::string_view text : all) {
    const ProtobufMessage message(text);
    last_id_ = std::max(last_id_, message.Number(computation::kId));
    LookAtComputation(message);
    for (const std::string_view inner :
         message.All(computation::kInstructions)) {
      const ProtobufMessage one(inner);
      last_id_ = std::max(last_id_, one.Number(instruction::kId));
      LookAt(one);
      if (!one.Has(instruction::kSharding)) continue;
      const std::string_view sharding = one.Bytes(instruction::kSharding);
      is_sharded_ = true;
      has_manual_region_ = has_manual_region_ || IsManual(sharding);
      is_divided_ =
          is_divided_ || (one.Bytes(instruction::kOpcode) == "parameter" &&
                          TilingOf(sharding).has_value());
    }
  }
  if (!IsNeeded()) return std::nullopt;
  for (const std::string_view text : all) {
    ProtobufMessage message(text);
    ChangeComputation(&message);
    computations_.push_back(message.Serialize());
  }
  if (!is_changed_) return std::nullopt;
  module_.Replace(module::kComputations, computations_);
  return module_.Serialize();
}

void ProgramPass::ChangeComputation(ProtobufMessage* message) {
  shapes_.clear();
  instructions_.clear();
  Begin(*message);
  for (const std::string_view inner :
       message->All(computation::kInstructions)) {
    ProtobufMessage one(inner);
    shapes_.emplace(one.Number(instruction::kId),
                    one.Bytes(instruction::kShape));
    Rewrite(std::move(one));
  }
  message->Replace(computation::kInstructions, instructions_);
}

uint64_t ProgramPass::Add(std::string_view opcode, std::string_view shape,
                          const std::vector<uint64_t>& operands,
                          ProtobufMessage message) {
  const uint64_t id = message.Has(instruction::kId)
                          ? message.Number(instruction::kId)
                          : last_id_ + 1;
  message.SetBytes(instruction::kName, prefix_ + "." + std::string(opcode) +
                                           "." + std::to_string(id));
  message.SetBytes(instruction::kOpcode, opcode);
  message.SetBytes(instruction::kShape, shape);
  message.SetNumber(instruction::kId, id);
  message.SetNumbers(instruction::kOperandIds, operands);
  AddSerialized(message.Serialize());
  shapes_.emplace(id, shape);
  return id;
}

uint64_t ProgramPass::AddSerialized(std::string serialized) {
  is_changed_ = true;
  instructions_.push_back(std::move(serialized));
  return ++last_id_;
}

uint64_t ProgramPass::AddNumber(int64_t value, uint64_t type,
                                const ProtobufMessage& message) {
  ProtobufMessage shape, literal, constant = message;
  shape.SetNumber(hlo::shape::kElementType, hlo::kS64);
  shape.SetBytes(hlo::shape::kLayout, "");
  literal.SetBytes(hlo::literal::kShape, shape.Serialize());
  literal.SetNumbers(hlo::literal::kS64s, {static_cast<uint64_t>(value)});
  constant.SetBytes(instruction::kLiteral, literal.Serialize());
  const uint64_t number =
      Add("constant", shape.Serialize(), {}, std::move(constant));
  shape.SetNumber(hlo::shape::kElementType, type);
  return Add("convert", shape.Serialize(), {number}, message);
}

}  // namespace torch_xla_ext
