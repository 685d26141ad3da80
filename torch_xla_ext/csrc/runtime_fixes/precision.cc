#include "torch_xla_ext/csrc/runtime_fixes/precision.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
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

}  // namespace

std::optional<std::string> SetPrecision(const std::string& module,
                                        uint64_t precision) {
  if (precision == kDefault) return std::nullopt;
  ProtobufMessage config;
  config.SetNumbers(precision_config::kOperandPrecision,
                    {precision, precision});
  const std::string both_operands = config.Serialize();
  bool is_changed = false;
  const auto with_precision = [&](std::string_view text) {
    ProtobufMessage one(text);
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    if ((opcode != "dot" && opcode != "convolution") ||
        IsSet(one.Bytes(instruction::kPrecisionConfig))) {
      return std::string(text);
    }
    is_changed = true;
    one.SetBytes(instruction::kPrecisionConfig, both_operands);
    return one.Serialize();
  };
  ProtobufMessage program(module);
  program.Transform(hlo::module::kComputations, [&](std::string_view text) {
    ProtobufMessage computation(text);
    computation.Transform(hlo::computation::kInstructions, with_precision);
    return computation.Serialize();
  });
  if (!is_changed) return std::nullopt;
  return program.Serialize();
}

}  // namespace torch_xla_ext
