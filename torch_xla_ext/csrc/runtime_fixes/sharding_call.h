// Makes sharding annotations in a program, as xla::HloInstructionProto.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_SHARDING_CALL_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_SHARDING_CALL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {

// Whether a sharding is manual: in a region that the program itself divides.
inline bool IsManual(std::string_view serialized) {
  const ProtobufMessage sharding(serialized);
  const std::vector<std::string_view> parts =
      sharding.All(hlo::sharding::kTupleShardings);
  return sharding.Number(hlo::sharding::kType) == hlo::kManual ||
         std::any_of(parts.begin(), parts.end(), IsManual);
}

// The instruction `id`: `operand`, of the serialized shape `shape`, with the
// serialized xla::OpSharding `sharding`, which is replicated if it is empty.
inline std::string SerializedShardingCall(uint64_t id, uint64_t operand,
                                          std::string_view shape,
                                          std::string_view sharding,
                                          std::string_view backend_config) {
  constexpr uint64_t kApiVersionOriginal = 1;
  namespace instruction = hlo::instruction;
  ProtobufMessage message;
  message.SetBytes(instruction::kCustomCallTarget, "Sharding");
  message.SetBytes(instruction::kSharding, sharding);
  if (!backend_config.empty()) {
    message.SetBytes(instruction::kBackendConfig, backend_config);
  }
  message.SetNumber(instruction::kCustomCallApiVersion, kApiVersionOriginal);
  message.SetBytes(instruction::kName,
                   "operand.custom-call." + std::to_string(id));
  message.SetBytes(instruction::kOpcode, "custom-call");
  message.SetBytes(instruction::kShape, shape);
  message.SetNumber(instruction::kId, id);
  message.SetNumbers(instruction::kOperandIds, {operand});
  return message.Serialize();
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_SHARDING_CALL_H_
