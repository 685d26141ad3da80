#include "torch_xla_ext/csrc/runtime_fixes/windowed_operands.h"

#include <algorithm>
#include <cstdint>
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
constexpr uint64_t kApiVersionOriginal = 1;

// Whether a sharding is that of a mesh with several axes: it divides several
// dimensions, or some devices have the same shard.
bool HasSeveralAxes(std::string_view serialized) {
  const ProtobufMessage sharding(serialized);
  const std::vector<uint64_t> tiles =
      sharding.Numbers(hlo::sharding::kTileAssignmentDimensions);
  const std::vector<std::string_view> parts =
      sharding.All(hlo::sharding::kTupleShardings);
  return std::count_if(tiles.begin(), tiles.end(),
                       [](uint64_t size) { return size > 1; }) > 1 ||
         sharding.Number(hlo::sharding::kReplicateOnLastTileDim) != 0 ||
         std::any_of(parts.begin(), parts.end(), HasSeveralAxes);
}

// Whether a sharding is that of a region which the program itself divides.
bool IsManual(std::string_view serialized) {
  const ProtobufMessage sharding(serialized);
  const std::vector<std::string_view> parts =
      sharding.All(hlo::sharding::kTupleShardings);
  return sharding.Number(hlo::sharding::kType) == hlo::kManual ||
         std::any_of(parts.begin(), parts.end(), IsManual);
}

class WindowedOperands {
 public:
  explicit WindowedOperands(const std::string& serialized)
      : module_(serialized) {
    for (const std::string_view text : module_.All(module::kComputations)) {
      const ProtobufMessage message(text);
      for (const std::string_view inner :
           message.All(computation::kInstructions)) {
        const ProtobufMessage one(inner);
        last_id_ = std::max(last_id_, one.Number(instruction::kId));
        is_sharded_ |= one.Has(instruction::kSharding);
        if (!one.Has(instruction::kSharding)) continue;
        const std::string_view sharding = one.Bytes(instruction::kSharding);
        has_several_axes_ = has_several_axes_ || HasSeveralAxes(sharding);
        has_manual_region_ = has_manual_region_ || IsManual(sharding);
      }
    }
  }

  std::optional<std::string> Run() {
    if (!is_sharded_ || has_manual_region_) return std::nullopt;
    module_.Transform(module::kComputations, [this](std::string_view text) {
      return WithWholeOperands(text);
    });
    if (!is_changed_) return std::nullopt;
    return module_.Serialize();
  }

 private:
  std::string WithWholeOperands(std::string_view text) {
    ProtobufMessage message(text);
    shapes_.clear();
    instructions_.clear();
    for (const std::string_view inner :
         message.All(computation::kInstructions)) {
      ProtobufMessage one(inner);
      shapes_.emplace(one.Number(instruction::kId),
                      one.Bytes(instruction::kShape));
      const std::string_view opcode = one.Bytes(instruction::kOpcode);
      if (opcode == "convolution" && has_several_axes_) {
        GatherOfConvolution(&one);
      } else if (opcode == "select-and-scatter") {
        GatherOfSelectAndScatter(&one);
      }
      instructions_.push_back(one.Serialize());
    }
    message.Replace(computation::kInstructions, instructions_);
    return message.Serialize();
  }

  void GatherOfConvolution(ProtobufMessage* one) {
    const ProtobufMessage dimensions(
        one->Bytes(instruction::kConvolutionDimensionNumbers));
    std::vector<uint64_t> input = {
        dimensions.Number(hlo::convolution::kInputBatch),
        dimensions.Number(hlo::convolution::kInputFeature)};
    std::vector<uint64_t> kernel = {
        dimensions.Number(hlo::convolution::kKernelInputFeature),
        dimensions.Number(hlo::convolution::kKernelOutputFeature)};
    if (one->Number(instruction::kBatchGroupCount) > 1) {
      input.clear();
      kernel.clear();
    } else if (one->Number(instruction::kFeatureGroupCount) > 1) {
      input.pop_back();
      kernel.clear();
    }
    const std::vector<uint64_t> operands =
        one->Numbers(instruction::kOperandIds);
    one->SetNumbers(instruction::kOperandIds,
                    {WholeBut(operands[0], std::move(input)),
                     WholeBut(operands[1], std::move(kernel))});
  }

  void GatherOfSelectAndScatter(ProtobufMessage* one) {
    const ProtobufMessage window(one->Bytes(instruction::kWindow));
    std::vector<uint64_t> others;
    bool overlaps = false;
    uint64_t number = 0;
    for (const std::string_view text : window.All(hlo::window::kDimensions)) {
      const ProtobufMessage dimension(text);
      const uint64_t size = dimension.Number(hlo::window::kSize);
      overlaps |= dimension.Number(hlo::window::kStride) < size;
      if (size == 1) others.push_back(number);
      ++number;
    }
    if (!overlaps) return;
    std::vector<uint64_t> operands = one->Numbers(instruction::kOperandIds);
    operands[0] = WholeBut(operands[0], others);
    operands[1] = WholeBut(operands[1], others);
    one->SetNumbers(instruction::kOperandIds, operands);
  }

  // The operand, replicated but for these dimensions, of which XLA decides.
  uint64_t WholeBut(uint64_t operand, std::vector<uint64_t> dimensions) {
    is_changed_ = true;
    const uint64_t id = ++last_id_;
    ProtobufMessage message;
    message.SetBytes(instruction::kName,
                     "windowed_operand." + std::to_string(id));
    message.SetBytes(instruction::kOpcode, "custom-call");
    message.SetBytes(instruction::kShape, shapes_.at(operand));
    message.SetBytes(instruction::kCustomCallTarget, "Sharding");
    message.SetNumber(instruction::kId, id);
    message.SetNumbers(instruction::kOperandIds, {operand});
    message.SetBytes(instruction::kSharding, "");  // replicated
    std::sort(dimensions.begin(), dimensions.end());
    std::string numbers;
    for (const uint64_t dimension : dimensions) {
      numbers += (numbers.empty() ? "" : ",") + std::to_string(dimension);
    }
    if (!numbers.empty()) {
      message.SetBytes(instruction::kBackendConfig,
                       "unspecified_dims=[" + numbers + "]");
    }
    message.SetNumber(instruction::kCustomCallApiVersion, kApiVersionOriginal);
    instructions_.push_back(message.Serialize());
    return id;
  }

  ProtobufMessage module_;
  uint64_t last_id_ = 0;
  bool is_sharded_ = false, has_several_axes_ = false;
  bool has_manual_region_ = false, is_changed_ = false;
  // Of the computation that is being changed.
  std::unordered_map<uint64_t, std::string> shapes_;
  std::vector<std::string> instructions_;
};

}  // namespace

std::optional<std::string> GatherWindowedOperands(const std::string& module) {
  return WindowedOperands(module).Run();
}

}  // namespace torch_xla_ext
