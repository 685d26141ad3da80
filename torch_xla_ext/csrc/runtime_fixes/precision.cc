#include "torch_xla_ext/csrc/runtime_fixes/precision.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {

namespace instruction = hlo::instruction;
namespace precision_config = hlo::precision_config;
namespace {

constexpr uint64_t kDefault = 0;  // of xla::PrecisionConfig::Precision

// Whether a product with this xla::PrecisionConfig has a precision of its own.
bool IsSet(std::string_view serialized) {
  const ProtobufMessage config(serialized);
  if (config.Has(precision_config::kAlgorithm)) return true;
  const std::vector<uint64_t> precisions =
      config.Numbers(precision_config::kOperandPrecision);
  return std::any_of(precisions.begin(), precisions.end(),
                     [](uint64_t one) { return one != kDefault; });
}

class Precision : public ProgramPass {
 public:
  Precision(const std::string& serialized, uint64_t precision)
      : ProgramPass(serialized, "precision") {
    config_.SetNumbers(precision_config::kOperandPrecision,
                       {precision, precision});
  }

 private:
  void Change(ProtobufMessage* one) override {
    const std::string_view opcode = one->Bytes(instruction::kOpcode);
    if ((opcode != "dot" && opcode != "convolution") ||
        IsSet(one->Bytes(instruction::kPrecisionConfig))) {
      return;
    }
    is_changed_ = true;
    one->SetBytes(instruction::kPrecisionConfig, config_.Serialize());
  }

  ProtobufMessage config_;
};

}  // namespace

std::optional<std::string> SetPrecision(const std::string& module,
                                        uint64_t precision) {
  if (precision == kDefault) return std::nullopt;
  return Precision(module, precision).Run();
}

}  // namespace torch_xla_ext
