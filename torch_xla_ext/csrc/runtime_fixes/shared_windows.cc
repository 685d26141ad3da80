#include "torch_xla_ext/csrc/runtime_fixes/shared_windows.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {
namespace {

namespace instruction = hlo::instruction;

class SharedWindows : public ProgramPass {
 public:
  explicit SharedWindows(const std::string& serialized)
      : ProgramPass(serialized, "window") {}

 private:
  bool IsNeeded() const override { return is_sharded_; }

  void Begin(const ProtobufMessage&) override {
    constants_.clear();
    operands_.clear();
  }

  void Change(ProtobufMessage* one) override {
    const std::string_view opcode = one->Bytes(instruction::kOpcode);
    if (opcode == "constant") {
      constants_.emplace(one->Number(instruction::kId),
                         one->Bytes(instruction::kLiteral));
    } else if (opcode == "reduce-window" || opcode == "pad") {
      Separate(one);
    }
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
    const std::string shape = shapes_.at(operand);
    const uint64_t id = Add("opt-barrier", shape, {operand});
    shapes_.emplace(id, shape);
    return id;
  }

  // What stands for one operand of one window.
  struct Operands {
    std::map<std::string, uint64_t> by_margin;
    uint64_t last = 0;  // of these; 0 is no id of an instruction
  };

  // These describe the computation that is being changed.
  std::unordered_map<uint64_t, std::string_view> constants_;
  std::map<std::pair<uint64_t, std::string>, Operands> operands_;
};

}  // namespace

std::optional<std::string> SeparateWindows(const std::string& module) {
  return SharedWindows(module).Run();
}

}  // namespace torch_xla_ext
