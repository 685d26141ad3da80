#include "torch_xla_ext/csrc/runtime_fixes/partitioned_margins.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/partition_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

namespace torch_xla_ext {
namespace {

namespace instruction = hlo::instruction;

class PartitionedMargins : public PartitionPass {
 public:
  explicit PartitionedMargins(const std::string& serialized)
      : PartitionPass(serialized, "margin") {}

 private:
  struct Pad {
    Sizes sizes;  // of the operand
    Sizes low;
  };

  bool IsNeeded() const override { return is_sharded_ && !has_manual_region_; }
  void Begin(const ProtobufMessage&) override { pads_.clear(); }

  void Change(ProtobufMessage* one) override {
    const std::string_view opcode = one->Bytes(instruction::kOpcode);
    if (opcode == "pad" || opcode == "slice") {
      const Sizes uneven = UnevenAndChanged(*one);
      if (opcode == "pad") {
        EnlargePad(one);
      } else {
        SeparateSlice(one);
      }
      if (!uneven.empty()) GatherOfMargins(one, uneven);
    } else if (opcode == "reduce") {
      GatherOfReduce(one);
    }
  }

  // Pads by more, and takes a slice of the result.
  void EnlargePad(ProtobufMessage* one) {
    const Sizes operands = one->Numbers(instruction::kOperandIds);
    const Sizes before = SizesOf(operands[0]);
    const uint64_t id = one->Number(instruction::kId);
    ProtobufMessage configuration(one->Bytes(instruction::kPaddingConfig));
    Sizes sizes = SizesOf(id);
    std::vector<std::string> edges, limits;
    Pad& pad = pads_[id] = {before, {}};
    bool is_shift = false;
    for (const std::string_view text :
         configuration.All(hlo::padding::kDimensions)) {
      ProtobufMessage edge(text), limit;
      uint64_t& size = sizes.at(edges.size());
      pad.low.push_back(edge.Number(hlo::padding::kLow));
      limit.SetNumber(hlo::slice::kLimit, size);
      limit.SetNumber(hlo::slice::kStride, 1);
      if (size == before.at(edges.size()) && pad.low.back() != 0) {
        is_shift = true;
        size += devices_;
        edge.SetNumber(hlo::padding::kHigh,
                       edge.Number(hlo::padding::kHigh) + devices_);
      }
      edges.push_back(edge.Serialize());
      limits.push_back(limit.Serialize());
    }
    if (!is_shift) return;
    configuration.Replace(hlo::padding::kDimensions, edges);
    ProtobufMessage shape(shapes_.at(id)), enlarged, slice;
    shape.SetNumbers(hlo::shape::kDimensions, sizes);
    enlarged.SetBytes(instruction::kPaddingConfig, configuration.Serialize());
    const uint64_t whole =
        Add("pad", shape.Serialize(), operands, std::move(enlarged));
    slice.SetBytes(instruction::kName, one->Bytes(instruction::kName));
    slice.SetBytes(instruction::kOpcode, "slice");
    slice.SetBytes(instruction::kShape, shapes_.at(id));
    slice.SetNumber(instruction::kId, id);
    slice.SetNumbers(instruction::kOperandIds, {Barrier(whole)});
    slice.Replace(instruction::kSliceDimensions, limits);
    *one = std::move(slice);
  }

  // Keeps the partitioner from making one pad of a slice of a pad.
  void SeparateSlice(ProtobufMessage* one) {
    const uint64_t operand = one->Numbers(instruction::kOperandIds)[0];
    const auto pad = pads_.find(operand);
    if (pad == pads_.end()) return;
    const Sizes sizes = SizesOf(one->Number(instruction::kId));
    const std::vector<std::string_view> dimensions =
        one->All(instruction::kSliceDimensions);
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] != pad->second.sizes[i] ||
          ProtobufMessage(dimensions.at(i)).Number(hlo::slice::kStart) ==
              pad->second.low[i]) {
        continue;
      }
      one->SetNumbers(instruction::kOperandIds, {Barrier(operand)});
      return;
    }
  }

  uint64_t Barrier(uint64_t operand) {
    return Add("opt-barrier", shapes_.at(operand), {operand});
  }

  // Whether the partitioner takes a dimension of this size for a smaller one if
  // it has `parts` parts, beside `others` of another dimension, and is then
  // divided among all these devices.
  bool IsUneven(uint64_t size) const {
    for (uint64_t parts = 2; parts <= devices_ / 2; ++parts) {
      if (devices_ % parts != 0 || size % parts == 0) continue;
      const uint64_t part = size / parts + 1;
      for (uint64_t others = 2; others <= devices_ / parts; ++others) {
        if (devices_ / parts % others == 0 && part % others == 0) return true;
      }
    }
    return false;
  }

  // Those of these dimensions.
  Sizes Uneven(uint64_t operand, const Sizes& dimensions) const {
    const Sizes sizes = SizesOf(operand);
    Sizes uneven;
    for (const uint64_t i : dimensions) {
      if (sizes.size() > 1 && IsUneven(sizes.at(i))) uneven.push_back(i);
    }
    return uneven;
  }

  // Those of a slice or a pad whose size changes.
  Sizes UnevenAndChanged(const ProtobufMessage& one) const {
    const uint64_t operand = one.Numbers(instruction::kOperandIds)[0];
    const Sizes before = SizesOf(operand);
    const Sizes after = SizesOf(one.Number(instruction::kId));
    Sizes changed;
    for (uint64_t i = 0; i < before.size(); ++i) {
      if (after[i] != before[i]) changed.push_back(i);
    }
    return Uneven(operand, changed);
  }

  // The result becomes whole, too, because a whole operand would be divided
  // like the result, in two steps: along two dimensions, then along one.
  void GatherOfMargins(ProtobufMessage* one, const Sizes& dimensions) {
    Sizes operands = one->Numbers(instruction::kOperandIds);
    operands[0] = WholeIn(operands[0], dimensions);
    one->SetNumbers(instruction::kOperandIds, operands);
    GatherResult(one, Others(operands[0], dimensions));
  }

  // The partitioner divides all operands like the first one.
  void GatherOfReduce(ProtobufMessage* one) {
    Sizes operands = one->Numbers(instruction::kOperandIds);
    const size_t count = operands.size() / 2;
    if (count == 1) return;
    const Sizes uneven =
        Uneven(operands[0], one->Numbers(instruction::kDimensions));
    if (uneven.empty()) return;
    for (size_t i = 0; i < count; ++i) {
      operands[i] = WholeIn(operands[i], uneven);
    }
    one->SetNumbers(instruction::kOperandIds, operands);
  }

  std::unordered_map<uint64_t, Pad> pads_;
};

}  // namespace

std::optional<std::string> CorrectPartitionedMargins(
    const std::string& module) {
  return PartitionedMargins(module).Run();
}

}  // namespace torch_xla_ext
