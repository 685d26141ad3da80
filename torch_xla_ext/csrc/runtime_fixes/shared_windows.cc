#include "torch_xla_ext/csrc/runtime_fixes/shared_windows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
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
namespace module = hlo::module;

class SharedWindows {
 public:
  explicit SharedWindows(const std::string& serialized) : module_(serialized) {
    for (const std::string_view text : module_.All(module::kComputations)) {
      const ProtobufMessage message(text);
      for (const std::string_view inner :
           message.All(computation::kInstructions)) {
        const ProtobufMessage one(inner);
        last_id_ = std::max(last_id_, one.Number(instruction::kId));
        is_sharded_ = is_sharded_ || one.Has(instruction::kSharding);
        num_windows_ += HasMargin(one);
      }
    }
  }

  std::optional<std::string> Run() {
    if (!is_sharded_ || num_windows_ < 2) return std::nullopt;
    module_.Transform(module::kComputations, [this](std::string_view text) {
      return Separated(text);
    });
    if (!is_changed_) return std::nullopt;
    return module_.Serialize();
  }

 private:
  static bool HasMargin(const ProtobufMessage& one) {
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    return opcode == "reduce-window" || opcode == "pad";
  }

  std::string Separated(std::string_view text) {
    ProtobufMessage message(text);
    shapes_.clear();
    constants_.clear();
    operands_.clear();
    instructions_.clear();
    for (const std::string_view inner :
         message.All(computation::kInstructions)) {
      ProtobufMessage one(inner);
      const uint64_t id = one.Number(instruction::kId);
      shapes_.emplace(id, one.Bytes(instruction::kShape));
      if (one.Bytes(instruction::kOpcode) == "constant") {
        constants_.emplace(id, one.Bytes(instruction::kLiteral));
      }
      if (HasMargin(one)) {
        Separate(&one);
        instructions_.push_back(one.Serialize());
      } else {
        instructions_.emplace_back(inner);
      }
    }
    message.Replace(computation::kInstructions, instructions_);
    return message.Serialize();
  }

  // The operands are arrays, then as many values for their margins.
  void Separate(ProtobufMessage* one) {
    const std::string window(one->Has(instruction::kWindow)
                                 ? one->Bytes(instruction::kWindow)
                                 : one->Bytes(instruction::kPaddingConfig));
    std::vector<uint64_t> operands = one->Numbers(instruction::kOperandIds);
    const size_t count = operands.size() / 2;
    for (size_t i = 0; i < count; ++i) {
      Operands& own = operands_[{operands[i], window}];
      const auto [found, is_new] =
          own.by_margin.try_emplace(Margin(operands[count + i]), operands[i]);
      if (is_new) {
        // The barrier is of the last operand, because XLA could merge two
        // barriers of the first.
        if (own.last != 0) found->second = AddBarrier(own.last);
        own.last = found->second;
      }
      operands[i] = found->second;
    }
    one->SetNumbers(instruction::kOperandIds, operands);
  }

  // Equal for equal constants.
  std::string Margin(uint64_t value) const {
    const auto found = constants_.find(value);
    return found == constants_.end() ? std::to_string(value)
                                     : "constant " + std::string(found->second);
  }

  uint64_t AddBarrier(uint64_t operand) {
    is_changed_ = true;
    const uint64_t id = ++last_id_;
    const std::string shape = shapes_.at(operand);
    ProtobufMessage message;
    message.SetBytes(instruction::kName, "window." + std::to_string(id));
    message.SetBytes(instruction::kOpcode, "opt-barrier");
    message.SetBytes(instruction::kShape, shape);
    message.SetNumber(instruction::kId, id);
    message.SetNumbers(instruction::kOperandIds, {operand});
    instructions_.push_back(message.Serialize());
    shapes_.emplace(id, shape);
    return id;
  }

  // What stands for one operand of one window.
  struct Operands {
    std::map<std::string, uint64_t> by_margin;
    uint64_t last = 0;  // of these; 0 is no id of an instruction
  };

  ProtobufMessage module_;
  uint64_t last_id_ = 0;
  size_t num_windows_ = 0;
  bool is_sharded_ = false, is_changed_ = false;
  // These describe the computation that is being changed.
  std::unordered_map<uint64_t, std::string> shapes_;
  std::unordered_map<uint64_t, std::string_view> constants_;
  std::map<std::pair<uint64_t, std::string>, Operands> operands_;
  std::vector<std::string> instructions_;
};

}  // namespace

std::optional<std::string> SeparateWindows(const std::string& module) {
  return SharedWindows(module).Run();
}

}  // namespace torch_xla_ext
