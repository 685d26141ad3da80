#include "torch_xla_ext/csrc/runtime_fixes/partitioned_operands.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/partition_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"
#include "torch_xla_ext/csrc/runtime_fixes/tiling.h"

namespace torch_xla_ext {
namespace {

namespace instruction = hlo::instruction;
namespace literal = hlo::literal;
namespace shape = hlo::shape;

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

bool IsSorted(std::string_view serialized) {
  const std::vector<std::string_view> parts =
      ProtobufMessage(serialized).All(hlo::sharding::kTupleShardings);
  const std::optional<Tiling> tiling = TilingOf(serialized);
  return (!tiling || tiling->IsSorted()) &&
         std::all_of(parts.begin(), parts.end(), IsSorted);
}

class PartitionedOperands : public PartitionPass {
 public:
  explicit PartitionedOperands(const std::string& serialized)
      : PartitionPass(serialized, "operand") {}

 private:
  void LookAtComputation(const ProtobufMessage& message) override {
    const uint64_t root = message.Number(hlo::computation::kRootId);
    size_t operations = 0;
    bool is_known = false, is_boolean = false;
    for (const std::string_view inner :
         message.All(hlo::computation::kInstructions)) {
      const ProtobufMessage one(inner);
      const std::string_view opcode = one.Bytes(instruction::kOpcode);
      if (opcode != "parameter") ++operations;
      if (one.Number(instruction::kId) != root) continue;
      const uint64_t type = ProtobufMessage(one.Bytes(instruction::kShape))
                                .Number(shape::kElementType);
      const bool is_complex = type == hlo::kC64 || type == hlo::kC128;
      // XLA simplifies those of any() and all() to an "or" and an "and".
      is_boolean = type == hlo::kPred;
      is_known = opcode == "add" || opcode == "maximum" ||
                 opcode == "minimum" || (opcode == "multiply" && !is_complex);
    }
    if (is_boolean || (operations == 1 && is_known)) {
      known_.insert(message.Number(hlo::computation::kId));
    }
  }

  void LookAt(const ProtobufMessage& one) override {
    const std::string_view sharding = one.Bytes(instruction::kSharding);
    has_several_axes_ = has_several_axes_ || HasSeveralAxes(sharding);
    is_sorted_ = is_sorted_ && IsSorted(sharding);
    PartitionPass::LookAt(one);
  }

  // Refuses to divide what is one device's part in a region of manual sharding,
  // for which XLA aborts the process.
  void CheckMark(const ProtobufMessage& one) {
    const std::string_view target = one.Bytes(instruction::kCustomCallTarget);
    const std::vector<uint64_t> operands =
        one.Numbers(instruction::kOperandIds);
    const bool is_part = std::any_of(
        operands.begin(), operands.end(),
        [this](uint64_t operand) { return parts_.count(operand) != 0; });
    if (target == "Sharding" && is_part &&
        !IsManual(one.Bytes(instruction::kSharding))) {
      throw std::runtime_error(
          "mark_sharding: a tensor inside a region of manual sharding is one "
          "device's part: pass it to disable_manual_sharding before it is "
          "marked");
    }
    if (target == "SPMDFullToShardShape" ||
        (is_part && target != "SPMDShardToFullShape")) {
      parts_.insert(one.Number(instruction::kId));
    }
  }

  void Change(ProtobufMessage* one) override {
    if (has_manual_region_) CheckMark(*one);
    const std::string_view opcode = one->Bytes(instruction::kOpcode);
    if (opcode == "scatter") {
      PadScatter(one);
      if (has_manual_region_) return;
      if (!is_sorted_) GatherOfScatter(one);
      if (has_several_axes_) GatherOfElements(one);
    } else if (has_manual_region_) {
      return;
    } else if (opcode == "select-and-scatter") {
      GatherOfSelectAndScatter(one);
    } else if (opcode == "convolution" &&
               (has_several_axes_ || !is_sorted_ || CropsDilated(*one) ||
                IsGroupedProduct(*one))) {
      GatherOfConvolution(one);
    } else if (opcode == "gather" && has_several_axes_ && devices_ > 4) {
      GatherOfGather(one);
    } else if (!is_sorted_ && opcode == "dot") {
      GatherOfDot(one);
    } else if (opcode == "reduce") {
      GatherOfReduce(one);
    }
  }

  // A scatter's operands are its tensors, then the indices, then as many
  // updates. XLA divides dimensions of size 1, too: those of slices.
  void PadScatter(ProtobufMessage* scatter) {
    const ProtobufMessage numbers(
        scatter->Bytes(instruction::kScatterDimensionNumbers));
    if (numbers.Has(hlo::scatter::kOperandBatch)) return;
    const std::vector<uint64_t> window =
        numbers.Numbers(hlo::scatter::kUpdateWindow);
    std::vector<uint64_t> operands = scatter->Numbers(instruction::kOperandIds);
    const size_t place = operands.size() / 2;
    std::vector<uint64_t> of_updates, of_indices;
    for (const uint64_t size : SizesOf(operands.back())) {
      const bool is_window = std::find(window.begin(), window.end(),
                                       of_updates.size()) != window.end();
      of_updates.push_back(is_window ? 0
                                     : (devices_ - size % devices_) % devices_);
      if (!is_window) of_indices.push_back(of_updates.back());
    }
    if (std::count(of_updates.begin(), of_updates.end(), 0) ==
        static_cast<int64_t>(of_updates.size())) {
      return;
    }
    if (of_indices.size() < SizesOf(operands[place]).size()) {
      of_indices.insert(
          of_indices.begin() + numbers.Number(hlo::scatter::kIndexVector), 0);
    }
    for (size_t i = place; i < operands.size(); ++i) {
      // Updates at the index -1 are dropped.
      operands[i] = Padded(operands[i], i == place ? of_indices : of_updates,
                           i == place ? -1 : 0);
    }
    scatter->SetNumbers(instruction::kOperandIds, operands);
  }

  void GatherOfScatter(ProtobufMessage* scatter) {
    const ProtobufMessage numbers(
        scatter->Bytes(instruction::kScatterDimensionNumbers));
    std::vector<uint64_t> operands = scatter->Numbers(instruction::kOperandIds);
    const size_t place = operands.size() / 2;
    operands[place] = WholeBut(operands[place], {});
    for (size_t i = place + 1; i < operands.size(); ++i) {
      operands[i] =
          WholeBut(operands[i], numbers.Numbers(hlo::scatter::kUpdateWindow));
    }
    scatter->SetNumbers(instruction::kOperandIds, operands);
  }

  // Of a scatter by indices into several dimensions, operands and result keep
  // the division of one of them, and of the dimensions of a window.
  void GatherOfElements(ProtobufMessage* scatter) {
    const ProtobufMessage numbers(
        scatter->Bytes(instruction::kScatterDimensionNumbers));
    std::vector<uint64_t> indexed =
        numbers.Numbers(hlo::scatter::kIndexedDimensions);
    std::vector<uint64_t> operands = scatter->Numbers(instruction::kOperandIds);
    if (indexed.size() < 2 || operands.size() != 3) return;
    indexed.erase(std::min_element(indexed.begin(), indexed.end()));
    std::vector<uint64_t> updates =
        numbers.Numbers(hlo::scatter::kUpdateWindow);
    uint64_t first = 0;  // of the dimensions that indices and updates share
    while (std::count(updates.begin(), updates.end(), first) != 0) ++first;
    updates.push_back(first);
    const std::vector<uint64_t> others = Others(operands[0], indexed);
    const uint64_t vector = numbers.Number(hlo::scatter::kIndexVector);
    scatter->SetNumbers(
        instruction::kOperandIds,
        {WholeBut(operands[0], others),
         WholeBut(operands[1], {vector == 0 ? uint64_t{1} : uint64_t{0}}),
         WholeBut(operands[2], std::move(updates))});
    GatherResult(scatter, others);
  }

  // Whether a convolution omits margins of an input with gaps.
  static bool CropsDilated(const ProtobufMessage& one) {
    const ProtobufMessage window(one.Bytes(instruction::kWindow));
    const std::vector<std::string_view> dimensions =
        window.All(hlo::window::kDimensions);
    return std::any_of(
        dimensions.begin(), dimensions.end(), [](std::string_view text) {
          const ProtobufMessage dimension(text);
          return dimension.Number(hlo::window::kBaseDilation) > 1 &&
                 (static_cast<int64_t>(
                      dimension.Number(hlo::window::kPaddingLow)) < 0 ||
                  static_cast<int64_t>(
                      dimension.Number(hlo::window::kPaddingHigh)) < 0);
        });
  }

  // Whether a convolution in groups is a matrix product for each of them: a
  // window has one pixel, or all of them.
  bool IsGroupedProduct(const ProtobufMessage& one) const {
    if (one.Number(instruction::kFeatureGroupCount) <= 1 &&
        one.Number(instruction::kBatchGroupCount) <= 1) {
      return false;
    }
    const std::vector<uint64_t> sizes =
        SizesOf(one.Numbers(instruction::kOperandIds)[0]);
    const std::vector<uint64_t> spatial =
        ProtobufMessage(one.Bytes(instruction::kConvolutionDimensionNumbers))
            .Numbers(hlo::convolution::kInputSpatial);
    const std::vector<std::string_view> dimensions =
        ProtobufMessage(one.Bytes(instruction::kWindow))
            .All(hlo::window::kDimensions);
    for (size_t i = 0; i < spatial.size(); ++i) {
      const uint64_t size =
          ProtobufMessage(dimensions.at(i)).Number(hlo::window::kSize);
      if (size != 1 && size != sizes.at(spatial[i])) return false;
    }
    return true;
  }

  uint64_t Padded(uint64_t operand, const std::vector<uint64_t>& more,
                  int64_t value) {
    ProtobufMessage padded(shapes_.at(operand));
    const uint64_t margin =
        AddNumber(value, padded.Number(shape::kElementType));
    std::vector<uint64_t> sizes = SizesOf(operand);
    std::vector<std::string> edges;
    for (size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] += more[i];
      ProtobufMessage edge;
      edge.SetNumber(hlo::padding::kHigh, more[i]);
      edges.push_back(edge.Serialize());
    }
    padded.SetNumbers(shape::kDimensions, sizes);
    ProtobufMessage configuration, pad;
    configuration.Replace(hlo::padding::kDimensions, edges);
    pad.SetBytes(instruction::kPaddingConfig, configuration.Serialize());
    return Add("pad", padded.Serialize(), {operand, margin}, std::move(pad));
  }

  void GatherOfConvolution(ProtobufMessage* one) {
    const ProtobufMessage dimensions(
        one->Bytes(instruction::kConvolutionDimensionNumbers));
    std::vector<uint64_t> input = {
        dimensions.Number(hlo::convolution::kInputBatch)};
    std::vector<uint64_t> kernel = {
        dimensions.Number(hlo::convolution::kKernelOutputFeature)};
    if (is_sorted_) {  // The sums over features are right.
      input.push_back(dimensions.Number(hlo::convolution::kInputFeature));
      kernel.push_back(
          dimensions.Number(hlo::convolution::kKernelInputFeature));
    }
    const bool has_batch_groups =
        one->Number(instruction::kBatchGroupCount) > 1;
    const bool has_groups =
        has_batch_groups || one->Number(instruction::kFeatureGroupCount) > 1;
    if (has_groups) {
      input.resize(has_batch_groups ? 0 : 1);
      kernel.clear();
    }
    const std::vector<uint64_t> operands =
        one->Numbers(instruction::kOperandIds);
    one->SetNumbers(instruction::kOperandIds,
                    {WholeBut(operands[0], std::move(input)),
                     WholeBut(operands[1], std::move(kernel))});
    if (has_batch_groups) {
      GatherResult(one, {});
    } else if (has_groups) {
      GatherResult(one, {dimensions.Number(hlo::convolution::kOutputBatch)});
    } else if (CropsDilated(*one)) {
      GatherResult(one, {dimensions.Number(hlo::convolution::kOutputBatch),
                         dimensions.Number(hlo::convolution::kOutputFeature)});
    }
  }

  void GatherOfGather(ProtobufMessage* one) {
    std::vector<uint64_t> indexed =
        ProtobufMessage(one->Bytes(instruction::kGatherDimensionNumbers))
            .Numbers(hlo::gather::kCollapsed);
    std::vector<uint64_t> operands = one->Numbers(instruction::kOperandIds);
    if (indexed.size() < 2) return;
    // Such as a batch.
    if (indexed.size() == SizesOf(operands[0]).size()) {
      indexed.erase(indexed.begin());
    }
    operands[0] = WholeIn(operands[0], indexed);
    one->SetNumbers(instruction::kOperandIds, operands);
  }

  void GatherOfDot(ProtobufMessage* one) {
    const ProtobufMessage dimensions(
        one->Bytes(instruction::kDotDimensionNumbers));
    std::vector<uint64_t> operands = one->Numbers(instruction::kOperandIds);
    for (const size_t i : {0, 1}) {
      operands[i] =
          WholeIn(operands[i],
                  dimensions.Numbers(i == 0 ? hlo::dot::kLeftContracting
                                            : hlo::dot::kRightContracting));
    }
    one->SetNumbers(instruction::kOperandIds, operands);
  }

  void GatherOfReduce(ProtobufMessage* one) {
    std::vector<uint64_t> operands = one->Numbers(instruction::kOperandIds);
    const std::vector<uint64_t> called =
        one->Numbers(instruction::kCalledComputationIds);
    // Those of several operands are in partitioned_margins.cc.
    if (operands.size() != 2 || known_.count(called.at(0)) != 0) return;
    operands[0] = WholeIn(operands[0], one->Numbers(instruction::kDimensions));
    one->SetNumbers(instruction::kOperandIds, operands);
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
    GatherResult(one, others);
  }

  std::unordered_set<uint64_t> parts_;  // in a region of manual sharding
  std::unordered_set<uint64_t> known_;  // computations that devices can share
  bool has_several_axes_ = false;
  bool is_sorted_ = true;  // the devices of all tilings
};

}  // namespace

std::optional<std::string> CorrectPartitionedOperands(
    const std::string& module) {
  return PartitionedOperands(module).Run();
}

}  // namespace torch_xla_ext
