#include "torch_xla_ext/csrc/runtime_fixes/gradient_windows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"
#include "torch_xla_ext/csrc/runtime_fixes/tiling.h"

namespace torch_xla_ext {
namespace {

namespace computation = hlo::computation;
namespace instruction = hlo::instruction;
namespace module = hlo::module;
namespace shape = hlo::shape;

// The gradients of a window have at least one kWindows-th of all gradients'
// bytes. A window of a model with many layers is a layer.
constexpr uint64_t kWindows = 32;

// A program's weight gradients, and the products with a weight that they are
// computed between.
class GradientWindows : public ProgramPass {
 public:
  explicit GradientWindows(const std::string& serialized)
      : ProgramPass(serialized, "gradients") {}

 private:
  bool IsNeeded() const override { return is_divided_ && !has_manual_region_; }

  // A product with one weight, of the forward or of the backward pass.
  struct WeightProduct {
    uint64_t id, other_operand;
  };

  struct Window {
    uint64_t product;                 // the first one after the window
    uint64_t operand;                 // its operand that waits
    std::vector<uint64_t> gradients;  // of the window before
  };

  void ChangeComputation(ProtobufMessage* computation) override {
    if (computation->Number(computation::kId) !=
        module_.Number(module::kEntryComputationId)) {
      return;
    }
    for (const std::string_view inner :
         computation->All(computation::kInstructions)) {
      ProtobufMessage one(inner);
      const uint64_t id = one.Number(instruction::kId);
      order_.push_back(id);
      Follow(id, one);
      by_id_.emplace(id, std::move(one));
    }
    const std::vector<Window> windows = Windows();
    if (windows.empty()) return;
    for (const uint64_t id : gradients_) users_[id] = {};
    for (const uint64_t id : order_) {
      for (const uint64_t operand : OperandsOf(id)) {
        const auto found = users_.find(operand);
        if (found != users_.end()) found->second.push_back(id);
      }
    }
    for (const Window& window : windows) AddBarrier(window);
    std::vector<std::string> sorted = Sorted();
    if (sorted.empty()) return;  // something depends on its own result
    computation->Replace(computation::kInstructions, sorted);
    is_changed_ = true;
  }

  // Records what follows about an instruction from the earlier ones.
  void Follow(uint64_t id, const ProtobufMessage& one) {
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    const Sizes operands = one.Numbers(instruction::kOperandIds);
    sources_[id] = id;
    if (opcode == "parameter") {
      if (hlo::IsFloat(TypeOf(one))) weights_.insert(id);
    } else if (opcode == "dot" || opcode == "convolution") {
      const ProtobufMessage dimensions(
          one.Bytes(instruction::kDotDimensionNumbers));
      if (dimensions.Has(hlo::dot::kLeftBatch)) return;
      const bool is_left = weights_.count(operands[0]) != 0;
      const bool is_right = weights_.count(operands[1]) != 0;
      if (!is_left && !is_right) {
        gradients_.push_back(id);
      } else if (is_left != is_right) {
        products_.push_back({id, operands[is_left ? 1 : 0]});
      }
    } else if (operands.size() == 1 &&
               (opcode == "transpose" || opcode == "convert" ||
                opcode == "copy" || opcode == "reshape" ||
                opcode == "reverse" || opcode == "opt-barrier" ||
                one.Bytes(instruction::kCustomCallTarget) == "Sharding")) {
      sources_[id] = sources_.at(operands[0]);
      if (weights_.count(operands[0]) != 0) weights_.insert(id);
    }
  }

  std::vector<Window> Windows() const {
    if (gradients_.empty()) return {};
    // Gradients by their operands' sources.
    std::unordered_map<uint64_t, std::vector<uint64_t>> gradients_of;
    uint64_t bytes = 0;
    for (const uint64_t id : gradients_) {
      bytes += BytesOf(id);
      for (const uint64_t operand : OperandsOf(id)) {
        gradients_of[sources_.at(operand)].push_back(id);
      }
    }
    std::vector<Window> windows;
    std::unordered_set<uint64_t> seen;
    std::vector<uint64_t> pending, before;
    uint64_t pending_bytes = 0;
    const auto ancestors = Ancestors();
    for (size_t i = 0; i < products_.size(); ++i) {
      const auto& [product, operand] = products_[i];
      const auto found = gradients_of.find(sources_.at(operand));
      if (found == gradients_of.end()) continue;
      std::vector<uint64_t> own;
      for (const uint64_t gradient : found->second) {
        // The activations that a product of the forward pass multiplies are an
        // operand of a gradient, too, which depends on that product.
        if ((ancestors.at(gradient)[i / 64] >> i % 64 & 1) == 0) {
          own.push_back(gradient);
        }
      }
      if (own.empty()) continue;
      if (pending_bytes > bytes / kWindows) {
        if (!before.empty()) {
          windows.push_back({product, operand, std::move(before)});
        }
        before = std::exchange(pending, {});
        pending_bytes = 0;
      }
      for (const uint64_t gradient : own) {
        if (!seen.insert(gradient).second) continue;
        pending.push_back(gradient);
        pending_bytes += BytesOf(gradient);
      }
    }
    return windows;
  }

  // For each instruction, the products from which it is computed, as bits.
  std::unordered_map<uint64_t, std::vector<uint64_t>> Ancestors() const {
    std::unordered_map<uint64_t, size_t> indices;
    for (const WeightProduct& product : products_) {
      indices.emplace(product.id, indices.size());
    }
    std::unordered_map<uint64_t, std::vector<uint64_t>> ancestors;
    for (const uint64_t id : order_) {
      std::vector<uint64_t>& own = ancestors[id];
      own.resize(products_.size() / 64 + 1);
      for (const uint64_t operand : OperandsOf(id)) {
        const std::vector<uint64_t>& others = ancestors.at(operand);
        for (size_t i = 0; i < own.size(); ++i) own[i] |= others[i];
      }
      if (const auto found = indices.find(id); found != indices.end()) {
        own[found->second / 64] |= uint64_t{1} << found->second % 64;
      }
    }
    return ancestors;
  }

  // Lets the window's product, and all that uses its gradients, wait for these.
  void AddBarrier(const Window& window) {
    std::vector<uint64_t> values = {window.operand};
    values.insert(values.end(), window.gradients.begin(),
                  window.gradients.end());
    ProtobufMessage all;
    all.SetNumber(shape::kElementType, hlo::kTuple);
    std::vector<std::string> shapes;
    for (const uint64_t value : values) {
      shapes.emplace_back(by_id_.at(value).Bytes(instruction::kShape));
    }
    all.Replace(shape::kTupleShapes, shapes);
    const std::string type = all.Serialize();
    const uint64_t tuple = Add("tuple", type, values);
    const uint64_t barrier = Add("opt-barrier", type, {tuple});
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t element = Add("get-tuple-element", shapes[i], {barrier});
      by_id_.at(element).SetNumber(instruction::kTupleIndex, i);
      for (const uint64_t user :
           i == 0 ? std::vector{window.product} : users_.at(values[i])) {
        Sizes operands = OperandsOf(user);
        std::replace(operands.begin(), operands.end(), values[i], element);
        by_id_.at(user).SetNumbers(instruction::kOperandIds, operands);
      }
    }
  }

  uint64_t Add(std::string_view opcode, std::string_view type,
               const std::vector<uint64_t>& operands) {
    const uint64_t id = ++last_id_;
    ProtobufMessage one;
    one.SetBytes(instruction::kName, "gradients." + std::to_string(id));
    one.SetBytes(instruction::kOpcode, opcode);
    one.SetBytes(instruction::kShape, type);
    one.SetNumber(instruction::kId, id);
    one.SetNumbers(instruction::kOperandIds, operands);
    by_id_.emplace(id, std::move(one));
    order_.push_back(id);
    return id;
  }

  // The instructions, each after its operands; nothing if that is impossible.
  std::vector<std::string> Sorted() const {
    std::vector<std::string> sorted;
    std::unordered_map<uint64_t, bool> is_done;  // false while it is visited
    std::vector<uint64_t> to_visit(order_.rbegin(), order_.rend());
    while (!to_visit.empty()) {
      const uint64_t id = to_visit.back();
      if (const auto found = is_done.find(id);
          found != is_done.end() && found->second) {
        to_visit.pop_back();
        continue;
      }
      const bool is_first = is_done.try_emplace(id, false).second;
      bool is_ready = true;
      for (const uint64_t operand : OperandsOf(id)) {
        const auto found = is_done.find(operand);
        if (found != is_done.end() && found->second) continue;
        if (!is_first) return {};
        is_ready = false;
        to_visit.push_back(operand);
      }
      if (!is_ready) continue;
      is_done[id] = true;
      to_visit.pop_back();
      sorted.push_back(by_id_.at(id).Serialize());
    }
    return sorted;
  }

  Sizes OperandsOf(uint64_t id) const {
    return by_id_.at(id).Numbers(instruction::kOperandIds);
  }
  static uint64_t TypeOf(const ProtobufMessage& one) {
    return ProtobufMessage(one.Bytes(instruction::kShape))
        .Number(shape::kElementType);
  }
  uint64_t BytesOf(uint64_t id) const {
    return hlo::BytesOf(by_id_.at(id).Bytes(instruction::kShape));
  }

  // These describe the entry computation.
  std::vector<uint64_t> order_;
  std::unordered_map<uint64_t, ProtobufMessage> by_id_;
  std::unordered_map<uint64_t, uint64_t>
      sources_;                           // before transpositions etc.
  std::unordered_set<uint64_t> weights_;  // parameters, transposed etc.
  std::vector<uint64_t> gradients_;
  std::unordered_map<uint64_t, std::vector<uint64_t>> users_;  // of gradients
  std::vector<WeightProduct> products_;
};

}  // namespace

std::optional<std::string> OrderGradients(const std::string& module) {
  return GradientWindows(module).Run();
}

}  // namespace torch_xla_ext
