#include "torch_xla_ext/csrc/runtime_fixes/reductions.h"

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/runtime_fixes/hlo_fields.h"
#include "torch_xla_ext/csrc/runtime_fixes/program_pass.h"
#include "torch_xla_ext/csrc/runtime_fixes/protobuf_wire_format.h"

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

class Reductions : public ProgramPass {
 public:
  Reductions(const std::string& serialized, bool on_cpu)
      : ProgramPass(serialized, "accumulation"), on_cpu_(on_cpu) {}

 private:
  void LookAtComputation(const ProtobufMessage& message) override {
    const uint64_t id = message.Number(computation::kId);
    if (IsReducer(message)) reducers_.insert(id);
    has_places_ |= PicksExtremum(message);
    const std::string_view root = RootOpcode(message);
    if (root == "maximum") extrema_.emplace(id, /*is_negative=*/true);
    if (root == "minimum") extrema_.emplace(id, /*is_negative=*/false);
  }

  void LookAt(const ProtobufMessage& one) override {
    has_float16_ |= IsOfFloat32(one) && IsFloat16(one);
  }

  bool IsNeeded() const override {
    return !reducers_.empty() || !extrema_.empty() || has_places_ ||
           has_float16_;
  }

  // Whether `one` must be computed in float32 if it is of float16.
  bool IsOfFloat32(const ProtobufMessage& one) const {
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    return opcode == "divide" || (on_cpu_ && opcode == "convolution");
  }

  static bool IsFloat16(const ProtobufMessage& one) {
    return ProtobufMessage(one.Bytes(instruction::kShape))
               .Number(shape::kElementType) == kF16;
  }

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
  // `computations_`: before the one that calls it.
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
    computations_.push_back(copy.Serialize());
    widened_.emplace(id, new_id);
    return new_id;
  }

  // The id and the fields of `one` that the instruction in its place keeps.
  static ProtobufMessage Kept(const ProtobufMessage& one, uint64_t id) {
    ProtobufMessage message;
    for (const uint32_t field :
         {instruction::kMetadata, instruction::kSharding}) {
      if (one.Has(field)) message.SetBytes(field, one.Bytes(field));
    }
    message.SetNumber(instruction::kId, id);
    return message;
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
      Add("convert", result, {wide_id}, Kept(one, id));
      return;
    }
    std::vector<uint64_t> elements;
    for (const std::string_view element : type.All(shape::kTupleShapes)) {
      const std::string own(element);
      ProtobufMessage index;
      index.SetNumber(instruction::kTupleIndex, elements.size());
      uint64_t value = Add("get-tuple-element", Widened(element), {wide_id},
                           std::move(index));
      if (Is16Bits(own)) value = Add("convert", own, {value});
      elements.push_back(value);
    }
    Add("tuple", result, elements, Kept(one, id));
  }

  // The constant with infinity in place of the largest finite number; nothing
  // for other constants.
  static std::optional<std::string> Infinite(const ProtobufMessage& constant,
                                             bool is_negative) {
    ProtobufMessage value(constant.Bytes(instruction::kLiteral));
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
    ProtobufMessage initial = constant->second;
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
    ProtobufMessage last;
    last.SetNumber(instruction::kId, id);
    Add("or", result, {numbers, nans}, std::move(last));
  }

  bool IsWidened(const ProtobufMessage& one) const {
    if (IsOfFloat32(one)) return IsFloat16(one);
    if (!Accumulates(one.Bytes(instruction::kOpcode))) return false;
    const std::vector<uint64_t> called =
        one.Numbers(instruction::kCalledComputationIds);
    // A select-and-scatter's first computation selects.
    return !called.empty() && reducers_.count(called.back()) != 0;
  }

  void Begin(const ProtobufMessage& message) override {
    constants_.clear();
    picks_extremum_ = PicksExtremum(message);
  }

  void Rewrite(ProtobufMessage one) override {
    const std::string_view opcode = one.Bytes(instruction::kOpcode);
    if (opcode == "constant") {
      constants_.emplace(one.Number(instruction::kId), one);
    }
    if (IsWidened(one)) {
      WidenAccumulation(std::move(one));
    } else if (picks_extremum_ && opcode == "compare" &&
               IsFloat(shapes_.at(one.Numbers(instruction::kOperandIds)[0]))) {
      CompareNans(std::move(one));
    } else {
      auto changed = WithInfinity(one);
      is_changed_ = is_changed_ || changed;
      instructions_.push_back(changed ? std::move(*changed) : one.Serialize());
    }
  }

  const bool on_cpu_;
  bool has_float16_ = false;               // what must be computed in float32
  std::unordered_set<uint64_t> reducers_;  // ids of computations
  std::unordered_map<uint64_t, uint64_t> widened_;  // and of their copies
  // Computations of maxima and minima: whether they begin with -inf.
  std::unordered_map<uint64_t, bool> extrema_;
  bool has_places_ = false;  // whether a computation is that of ArgMax
  // These describe the computation that is being changed.
  bool picks_extremum_ = false;
  std::unordered_map<uint64_t, ProtobufMessage> constants_;
};

}  // namespace

std::optional<std::string> CorrectReductions(const std::string& module,
                                             bool on_cpu) {
  return Reductions(module, on_cpu).Run();
}

}  // namespace torch_xla_ext
