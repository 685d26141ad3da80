#include "torch_xla_ext/csrc/runtime_fixes/reductions.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/conversions.h"
#include "torch_xla_ext/csrc/runtime_fixes/gathered_weights.h"
#include "torch_xla_ext/csrc/runtime_fixes/gradient_windows.h"
#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/partitioned_operands.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"
#include "torch_xla_ext/csrc/runtime_fixes/shared_windows.h"

namespace torch_xla_ext {
namespace {

namespace computation = hlo::computation;
namespace instruction = hlo::instruction;
namespace literal = hlo::literal;
namespace module = hlo::module;
namespace program_shape = hlo::program_shape;
namespace shape = hlo::shape;
using hlo::kBf16;
using hlo::kF16;
using hlo::kF32;
using hlo::kF64;
using hlo::kTuple;

// The largest finite number of a floating-point type, and infinity, in the
// bytes of a literal. Their negatives have the last byte's first bit set.
struct Largest {
  uint32_t field;
  std::string_view finite;
  std::string_view infinite;
};
using std::string_view_literals::operator""sv;
constexpr Largest kLargest[] = {
    {literal::kF32s, "\xff\xff\x7f\x7f"sv, "\x00\x00\x80\x7f"sv},
    {literal::kF64s, "\xff\xff\xff\xff\xff\xff\xef\x7f"sv,
     "\x00\x00\x00\x00\x00\x00\xf0\x7f"sv},
    {literal::kF16s, "\xff\x7b"sv, "\x00\x7c"sv},
    {literal::kBf16s, "\x7f\x7f"sv, "\x80\x7f"sv},
};

std::string WithSign(std::string_view bytes, bool is_negative) {
  std::string number(bytes);
  if (is_negative) number.back() = static_cast<char>(number.back() | 0x80);
  return number;
}

bool Is16Bits(uint64_t element_type) {
  return element_type == kF16 || element_type == kBf16;
}

bool Is16Bits(std::string_view serialized_shape) {
  return Is16Bits(
      ProtobufMessage(serialized_shape).Number(shape::kElementType));
}

bool IsFloat(std::string_view serialized_shape) {
  const uint64_t type =
      ProtobufMessage(serialized_shape).Number(shape::kElementType);
  return Is16Bits(type) || type == kF32 || type == kF64;
}

// The shape with float32 in place of 16-bit floats.
std::string Widened(std::string_view serialized) {
  ProtobufMessage message(serialized);
  if (Is16Bits(message.Number(shape::kElementType))) {
    message.SetNumber(shape::kElementType, kF32);
  }
  message.Transform(shape::kTupleShapes, Widened);
  return message.Serialize();
}

// Whether a computation is that of xla::ArgMax or xla::ArgMin.
bool PicksExtremum(const ProtobufMessage& computation) {
  return computation.Bytes(computation::kName).rfind("minmax_func", 0) == 0;
}

bool Accumulates(std::string_view opcode) {
  return opcode == "reduce" || opcode == "reduce-window" ||
         opcode == "scatter" || opcode == "select-and-scatter";
}

class Corrections {
 public:
  explicit Corrections(const std::string& serialized) : module_(serialized) {
    for (const std::string_view text : module_.All(module::kComputations)) {
      const ProtobufMessage message(text);
      last_id_ = std::max(last_id_, message.Number(computation::kId));
      for (const std::string_view inner :
           message.All(computation::kInstructions)) {
        const ProtobufMessage one(inner);
        last_id_ = std::max(last_id_, one.Number(instruction::kId));
      }
      const uint64_t id = message.Number(computation::kId);
      if (IsReducer(message)) reducers_.insert(id);
      has_places_ |= PicksExtremum(message);
      const std::string_view root = RootOpcode(message);
      if (root == "maximum") extrema_.emplace(id, /*is_negative=*/true);
      if (root == "minimum") extrema_.emplace(id, /*is_negative=*/false);
    }
  }

  std::optional<std::string> Run() {
    if (reducers_.empty() && extrema_.empty() && !has_places_) {
      return std::nullopt;
    }
    std::vector<std::string> computations;
    for (const std::string_view text : module_.All(module::kComputations)) {
      std::string own = Corrected(text);
      // A computation comes after those that it calls.
      for (std::string& copy : copies_) computations.push_back(std::move(copy));
      copies_.clear();
      computations.push_back(std::move(own));
    }
    if (!is_changed_) return std::nullopt;
    module_.Replace(module::kComputations, computations);
    return module_.Serialize();
  }

 private:
  // Whether a computation adds or multiplies 16-bit floats, and nothing in it
  // depends on their type.
  static bool IsReducer(const ProtobufMessage& message) {
    bool is_reducer = false;
    for (const std::string_view inner :
         message.All(computation::kInstructions)) {
      const ProtobufMessage one(inner);
      const std::string_view opcode = one.Bytes(instruction::kOpcode);
      if (opcode == "constant" || one.Has(instruction::kCalledComputationIds)) {
        return false;
      }
      is_reducer |= (opcode == "add" || opcode == "multiply") &&
                    Is16Bits(one.Bytes(instruction::kShape));
    }
    return is_reducer;
  }

  static std::string_view RootOpcode(const ProtobufMessage& message) {
    const uint64_t root = message.Number(computation::kRootId);
    for (const std::string_view inner :
         message.All(computation::kInstructions)) {
      const ProtobufMessage one(inner);
      if (one.Number(instruction::kId) == root) {
        return one.Bytes(instruction::kOpcode);
      }
    }
    return {};
  }

  uint64_t NewId() { return ++last_id_; }

  // Returns the id of a float32 copy of a computation, which is added to
  // `copies_`.
  uint64_t WidenedComputation(uint64_t id) {
    const auto found = widened_.find(id);
    if (found != widened_.end()) return found->second;
    ProtobufMessage copy;
    for (const std::string_view text : module_.All(module::kComputations)) {
      ProtobufMessage message(text);
      if (message.Number(computation::kId) == id) copy = std::move(message);
    }
    const uint64_t new_id = NewId();
    const std::string suffix = ".f32." + std::to_string(new_id);
    std::unordered_map<uint64_t, uint64_t> ids;
    copy.Transform(computation::kInstructions, [&](std::string_view text) {
      ProtobufMessage one(text);
      const uint64_t own = NewId();
      ids[one.Number(instruction::kId)] = own;
      one.SetNumber(instruction::kId, own);
      one.SetBytes(instruction::kName,
                   std::string(one.Bytes(instruction::kName)) + suffix);
      one.Transform(instruction::kShape, Widened);
      std::vector<uint64_t> operands = one.Numbers(instruction::kOperandIds);
      for (uint64_t& operand : operands) operand = ids.at(operand);
      one.SetNumbers(instruction::kOperandIds, operands);
      return one.Serialize();
    });
    copy.Transform(computation::kProgramShape, [](std::string_view text) {
      ProtobufMessage types(text);
      types.Transform(program_shape::kParameters, Widened);
      types.Transform(program_shape::kResult, Widened);
      return types.Serialize();
    });
    copy.SetNumber(computation::kRootId,
                   ids.at(copy.Number(computation::kRootId)));
    copy.SetNumber(computation::kId, new_id);
    copy.SetBytes(computation::kName,
                  std::string(copy.Bytes(computation::kName)) + suffix);
    copies_.push_back(copy.Serialize());
    widened_.emplace(id, new_id);
    return new_id;
  }

  // Adds an instruction to the computation that is being corrected, and returns
  // its id.
  uint64_t Add(std::string_view opcode, const std::string& shape,
               const std::vector<uint64_t>& operands,
               std::optional<uint64_t> id = std::nullopt,
               const ProtobufMessage* like = nullptr,
               std::optional<uint64_t> tuple_index = std::nullopt) {
    ProtobufMessage message;
    const uint64_t own = id.value_or(NewId());
    message.SetBytes(instruction::kName, "accumulation." + std::string(opcode) +
                                             "." + std::to_string(last_id_));
    message.SetBytes(instruction::kOpcode, opcode);
    message.SetBytes(instruction::kShape, shape);
    if (like != nullptr) {
      for (const uint32_t field :
           {instruction::kMetadata, instruction::kSharding}) {
        if (like->Has(field)) message.SetBytes(field, like->Bytes(field));
      }
    }
    if (tuple_index) message.SetNumber(instruction::kTupleIndex, *tuple_index);
    message.SetNumber(instruction::kId, own);
    message.SetNumbers(instruction::kOperandIds, operands);
    instructions_.push_back(message.Serialize());
    return own;
  }

  // Makes an accumulation use float32. The result, converted back, takes over
  // its id.
  void WidenAccumulation(ProtobufMessage one) {
    const uint64_t id = one.Number(instruction::kId);
    const std::string result(one.Bytes(instruction::kShape));
    std::vector<uint64_t> operands = one.Numbers(instruction::kOperandIds);
    for (uint64_t& operand : operands) {
      const std::string& type = shapes_.at(operand);
      if (Is16Bits(type)) operand = Add("convert", Widened(type), {operand});
    }
    std::vector<uint64_t> called =
        one.Numbers(instruction::kCalledComputationIds);
    for (uint64_t& computation : called) {
      computation = WidenedComputation(computation);
    }
    const uint64_t wide_id = NewId();
    const std::string wide = Widened(result);
    one.SetNumber(instruction::kId, wide_id);
    one.SetBytes(instruction::kShape, wide);
    one.SetNumbers(instruction::kOperandIds, operands);
    one.SetNumbers(instruction::kCalledComputationIds, called);
    instructions_.push_back(one.Serialize());
    const ProtobufMessage type(result);
    if (type.Number(shape::kElementType) != kTuple) {
      Add("convert", result, {wide_id}, id, &one);
      return;
    }
    std::vector<uint64_t> elements;
    for (const std::string_view element : type.All(shape::kTupleShapes)) {
      const std::string own(element);
      uint64_t value =
          Add("get-tuple-element", Widened(element), {wide_id}, std::nullopt,
              /*like=*/nullptr, /*tuple_index=*/elements.size());
      if (Is16Bits(own)) value = Add("convert", own, {value});
      elements.push_back(value);
    }
    Add("tuple", result, elements, id, &one);
  }

  // The constant with infinity in place of the largest finite number; nothing
  // for other constants.
  static std::optional<std::string> Infinite(std::string_view constant,
                                             bool is_negative) {
    ProtobufMessage value(
        ProtobufMessage(constant).Bytes(instruction::kLiteral));
    for (const Largest& largest : kLargest) {
      if (value.Bytes(largest.field) == WithSign(largest.finite, is_negative)) {
        value.SetBytes(largest.field, WithSign(largest.infinite, is_negative));
        return value.Serialize();
      }
    }
    return std::nullopt;
  }

  // A maximum or minimum with infinity as its initial value; nothing if it is
  // another operation, or has another initial value.
  std::optional<std::string> WithInfinity(ProtobufMessage one) {
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    if (opcode != "reduce" && opcode != "reduce-window") return std::nullopt;
    const std::vector<uint64_t> called =
        one.Numbers(instruction::kCalledComputationIds);
    const auto found =
        called.empty() ? extrema_.end() : extrema_.find(called[0]);
    std::vector<uint64_t> operands = one.Numbers(instruction::kOperandIds);
    if (found == extrema_.end() || operands.size() != 2) return std::nullopt;
    const auto constant = constants_.find(operands[1]);
    if (constant == constants_.end()) return std::nullopt;
    const auto value = Infinite(constant->second, found->second);
    if (!value) return std::nullopt;
    ProtobufMessage initial(constant->second);
    operands[1] = NewId();
    initial.SetNumber(instruction::kId, operands[1]);
    initial.SetBytes(instruction::kName,
                     "infinity." + std::to_string(operands[1]));
    initial.SetBytes(instruction::kLiteral, *value);
    instructions_.push_back(initial.Serialize());
    one.SetNumbers(instruction::kOperandIds, operands);
    return one.Serialize();
  }

  // Changes the comparison of two values so that NaN is the extremum and equals
  // itself.
  void CompareNans(ProtobufMessage one) {
    const uint64_t id = one.Number(instruction::kId);
    const std::string result(one.Bytes(instruction::kShape));
    const bool is_equality =
        one.Bytes(instruction::kComparisonDirection) == "EQ";
    const std::vector<uint64_t> operands =
        one.Numbers(instruction::kOperandIds);
    const uint64_t numbers = NewId();
    one.SetNumber(instruction::kId, numbers);
    instructions_.push_back(one.Serialize());
    const auto is_nan = [&](uint64_t operand) {
      one.SetNumber(instruction::kId, NewId());
      one.SetBytes(instruction::kName, "is_nan." + std::to_string(last_id_));
      one.SetNumbers(instruction::kOperandIds, {operand, operand});
      one.SetBytes(instruction::kComparisonDirection, "NE");
      instructions_.push_back(one.Serialize());
      return last_id_;
    };
    uint64_t nans = is_nan(operands[0]);
    if (is_equality) nans = Add("and", result, {nans, is_nan(operands[1])});
    Add("or", result, {numbers, nans}, id);
  }

  bool IsWidened(const ProtobufMessage& one) const {
    if (!Accumulates(one.Bytes(instruction::kOpcode))) return false;
    const std::vector<uint64_t> called =
        one.Numbers(instruction::kCalledComputationIds);
    // A select-and-scatter's first computation selects.
    return !called.empty() && reducers_.count(called.back()) != 0;
  }

  std::string Corrected(std::string_view text) {
    ProtobufMessage message(text);
    const std::vector<std::string_view> all =
        message.All(computation::kInstructions);
    shapes_.clear();
    constants_.clear();
    instructions_.clear();
    bool is_changed = false;
    const bool picks_extremum = PicksExtremum(message);
    for (const std::string_view inner : all) {
      const ProtobufMessage one(inner);
      shapes_.emplace(one.Number(instruction::kId),
                      one.Bytes(instruction::kShape));
      if (one.Bytes(instruction::kOpcode) == "constant") {
        constants_.emplace(one.Number(instruction::kId), inner);
      }
      if (IsWidened(one)) {
        is_changed = true;
        WidenAccumulation(one);
      } else if (picks_extremum &&
                 one.Bytes(instruction::kOpcode) == "compare" &&
                 IsFloat(
                     shapes_.at(one.Numbers(instruction::kOperandIds)[0]))) {
        is_changed = true;
        CompareNans(one);
      } else if (const auto changed = WithInfinity(one)) {
        is_changed = true;
        instructions_.push_back(*changed);
      } else {
        instructions_.emplace_back(inner);
      }
    }
    if (!is_changed) return std::string(text);
    is_changed_ = true;
    message.Replace(computation::kInstructions, instructions_);
    return message.Serialize();
  }

  ProtobufMessage module_;
  uint64_t last_id_ = 0;
  std::unordered_set<uint64_t> reducers_;           // ids of computations
  std::unordered_map<uint64_t, uint64_t> widened_;  // and of their copies
  std::vector<std::string> copies_;
  // Computations of maxima and minima: whether they begin with -inf.
  std::unordered_map<uint64_t, bool> extrema_;
  bool has_places_ = false;  // whether a computation is that of ArgMax
  bool is_changed_ = false;
  // These describe the computation that is being corrected.
  std::unordered_map<uint64_t, std::string> shapes_;
  std::unordered_map<uint64_t, std::string_view> constants_;
  std::vector<std::string> instructions_;
};

}  // namespace

std::optional<std::string> CorrectReductions(const std::string& module) {
  std::optional<std::string> corrected = Corrections(module).Run();
  for (const auto correct :
       {CorrectPartitionedOperands, SeparateWindows, GatherWeights,
        OrderGradients, CorrectConversions}) {
    std::optional<std::string> further =
        correct(corrected ? *corrected : module);
    if (further) corrected = std::move(further);
  }
  return corrected;
}

}  // namespace torch_xla_ext
