#include "torch_xla_ext/csrc/launchers/tvm_ffi_arguments.h"

#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace torch_xla_ext::tvm_ffi {
namespace {

using xla::ffi::AnyBuffer;

// The attribute that lists the optional operands which a call omits
// (include/torch_xla_ext/ffi_entry.h).
constexpr std::string_view kAbsentOperands = "absent_operands";

struct Types {
  xla::ffi::DataType xla;
  DataType tvm;
};
constexpr Types kTypes[] = {
    {xla::ffi::PRED, {kBool, 8, 1}},
    {xla::ffi::S8, {kInt, 8, 1}},
    {xla::ffi::S16, {kInt, 16, 1}},
    {xla::ffi::S32, {kInt, 32, 1}},
    {xla::ffi::S64, {kInt, 64, 1}},
    {xla::ffi::U8, {kUInt, 8, 1}},
    {xla::ffi::U16, {kUInt, 16, 1}},
    {xla::ffi::U32, {kUInt, 32, 1}},
    {xla::ffi::U64, {kUInt, 64, 1}},
    {xla::ffi::F16, {kFloat, 16, 1}},
    {xla::ffi::F32, {kFloat, 32, 1}},
    {xla::ffi::F64, {kFloat, 64, 1}},
    {xla::ffi::BF16, {kBFloat, 16, 1}},
    {xla::ffi::C64, {kComplex, 64, 1}},
    {xla::ffi::C128, {kComplex, 128, 1}},
    {xla::ffi::F8E5M2, {kFloat8E5M2, 8, 1}},
    {xla::ffi::F8E4M3, {kFloat8E4M3, 8, 1}},
    {xla::ffi::F8E4M3FN, {kFloat8E4M3FN, 8, 1}},
    {xla::ffi::F8E4M3B11FNUZ, {kFloat8E4M3B11FNUZ, 8, 1}},
    {xla::ffi::F8E5M2FNUZ, {kFloat8E5M2FNUZ, 8, 1}},
    {xla::ffi::F8E4M3FNUZ, {kFloat8E4M3FNUZ, 8, 1}},
    {xla::ffi::F8E3M4, {kFloat8E3M4, 8, 1}},
    {xla::ffi::F8E8M0FNU, {kFloat8E8M0FNU, 8, 1}},
};

DataType DataTypeOf(xla::ffi::DataType type) {
  for (const Types& types : kTypes) {
    if (types.xla == type) return types.tvm;
  }
  throw std::invalid_argument("TVM-FFI has no dtype for XLA's type " +
                              std::to_string(static_cast<int>(type)));
}

Any Value(TypeIndex type, int64_t integer) {
  Any any = {type, 0, {}};
  any.integer = integer;
  return any;
}

Any Value(double number) {
  Any any = {kFloatValue, 0, {}};
  any.number = number;
  return any;
}

template <typename T>
T Read(const void* data) {
  return *static_cast<const T*>(data);
}

Any NumberAt(XLA_FFI_DataType type, const void* data) {
  switch (type) {
    case XLA_FFI_DataType_PRED:
      return Value(kBoolValue, Read<bool>(data));
    case XLA_FFI_DataType_S8:
      return Value(kIntValue, Read<int8_t>(data));
    case XLA_FFI_DataType_S16:
      return Value(kIntValue, Read<int16_t>(data));
    case XLA_FFI_DataType_S32:
      return Value(kIntValue, Read<int32_t>(data));
    case XLA_FFI_DataType_S64:
      return Value(kIntValue, Read<int64_t>(data));
    case XLA_FFI_DataType_U8:
      return Value(kIntValue, Read<uint8_t>(data));
    case XLA_FFI_DataType_U16:
      return Value(kIntValue, Read<uint16_t>(data));
    case XLA_FFI_DataType_U32:
      return Value(kIntValue, Read<uint32_t>(data));
    case XLA_FFI_DataType_F32:
      return Value(Read<float>(data));
    case XLA_FFI_DataType_F64:
      return Value(Read<double>(data));
    default:  // including u64
      throw std::invalid_argument(
          "TVM-FFI has no numbers of this type; pass a bool, an int or a "
          "float");
  }
}

}  // namespace

Word Word::Parse(const std::string& text) {
  if (text == "args") return {kOperands, 0, ""};
  if (text == "rets") return {kResults, 0, ""};
  if (text == "none") return {kNone, 0, ""};
  const size_t point = text.find('.');
  if (point != std::string::npos && point + 1 < text.size()) {
    const std::string of = text.substr(0, point), rest = text.substr(point + 1);
    if (of == "attrs") return {kAttribute, 0, rest};
    char* end;
    const size_t index = std::strtoul(rest.c_str(), &end, 10);
    if (*end == '\0' && of == "args") return {kOperand, index, ""};
    if (*end == '\0' && of == "rets") return {kResult, index, ""};
  }
  throw std::invalid_argument(
      "unknown argument \"" + text +
      "\"; known are args, rets, args.0, rets.0, attrs.name and none");
}

Arguments::Arguments(const std::vector<Word>& words, Device device,
                     const xla::ffi::RemainingArgs& args,
                     const xla::ffi::RemainingRets& rets,
                     const XLA_FFI_Attrs& attrs)
    : args_(args), rets_(rets), attrs_(attrs), device_(device) {
  ReadAbsentOperands();
  num_operands_ = args.size() + __builtin_popcountll(absent_);
  used_operands_.resize(num_operands_);
  used_results_.resize(rets.size());
  used_attributes_.resize(attrs.size);
  for (const Word& word : words) Add(word);
  CheckAllAreUsed();
}

bool Arguments::HasResultAt(const void* data) const {
  for (size_t i = 0; i < rets_.size(); ++i) {
    if ((*rets_.get<AnyBuffer>(i))->untyped_data() == data) return true;
  }
  return false;
}

std::string_view Arguments::NameOfAttribute(size_t index) const {
  return {attrs_.names[index]->ptr, attrs_.names[index]->len};
}

AnyBuffer Arguments::Operand(size_t index) const {
  const uint64_t before = absent_ & ((uint64_t{1} << index) - 1);
  return *args_.get<AnyBuffer>(index - __builtin_popcountll(before));
}

void Arguments::ReadAbsentOperands() {
  for (int64_t i = 0; i < attrs_.size; ++i) {
    if (NameOfAttribute(i) != kAbsentOperands) continue;
    const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attrs_.attrs[i]);
    absent_ = Read<uint64_t>(scalar->value);
  }
}

void Arguments::Add(const Word& word) {
  switch (word.kind) {
    case Word::kOperands:
      for (size_t i = 0; i < num_operands_; ++i) AddOperand(i);
      return;
    case Word::kResults:
      for (size_t i = 0; i < rets_.size(); ++i) AddResult(i);
      return;
    case Word::kOperand:
      return AddOperand(word.index);
    case Word::kResult:
      return AddResult(word.index);
    case Word::kAttribute:
      return AddAttribute(word.name);
    case Word::kNone:
      return AddNone();
  }
}

void Arguments::AddOperand(size_t index) {
  if (index >= num_operands_) {
    throw std::invalid_argument("the call has no operand " +
                                std::to_string(index));
  }
  used_operands_[index] = true;
  if (IsAbsent(index)) return AddNone();
  AddTensor(Operand(index));
}

void Arguments::AddResult(size_t index) {
  if (index >= rets_.size()) {
    throw std::invalid_argument("the call has no result " +
                                std::to_string(index));
  }
  used_results_[index] = true;
  AddTensor(**rets_.get<AnyBuffer>(index));
}

void Arguments::AddTensor(const AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  AddObject(TensorOn(buffer.untyped_data(), device_,
                     DataTypeOf(buffer.element_type()),
                     {dims.begin(), dims.end()}));
}

void Arguments::AddObject(Reference object) {
  Any any = {object.get()->type_index, 0, {}};
  any.object = object.get();
  values_.push_back(any);
  objects_.push_back(std::move(object));
}

void Arguments::AddNone() { values_.push_back(Value(kNoneValue, 0)); }

void Arguments::AddAttribute(const std::string& name) {
  for (int64_t i = 0; i < attrs_.size; ++i) {
    if (NameOfAttribute(i) != name) continue;
    used_attributes_[i] = true;
    try {
      return AddValue(attrs_.types[i], attrs_.attrs[i]);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("attribute " + name + ": " + error.what());
    }
  }
  throw std::invalid_argument("the call has no attribute " + name);
}

void Arguments::AddValue(XLA_FFI_AttrType type, const void* attribute) {
  switch (type) {
    case XLA_FFI_AttrType_SCALAR: {
      const auto* scalar = static_cast<const XLA_FFI_Scalar*>(attribute);
      values_.push_back(NumberAt(scalar->dtype, scalar->value));
      return;
    }
    case XLA_FFI_AttrType_STRING:
      return AddString(*static_cast<const XLA_FFI_ByteSpan*>(attribute));
    case XLA_FFI_AttrType_ARRAY:
      return AddArray(*static_cast<const XLA_FFI_Array*>(attribute));
    default:
      throw std::invalid_argument(
          "a dictionary cannot be passed; pass its values as attributes");
  }
}

void Arguments::AddString(const XLA_FFI_ByteSpan& bytes) {
  const std::string& text = texts_.emplace_back(bytes.ptr, bytes.len);
  if (text.find('\0') != std::string::npos) {
    throw std::invalid_argument(
        "a str with a null byte cannot be passed as a C string: remove the "
        "byte");
  }
  Any any = {kCString, 0, {}};
  any.text = text.c_str();
  values_.push_back(any);
}

void Arguments::AddArray(const XLA_FFI_Array& array) {
  const size_t width =
      xla::ffi::ByteWidth(static_cast<xla::ffi::DataType>(array.dtype));
  std::vector<Any> elements;
  for (size_t i = 0; i < array.size; ++i) {
    elements.push_back(NumberAt(
        array.dtype, static_cast<const char*>(array.data) + i * width));
  }
  AddObject(ArrayOf(elements));
}

void Arguments::CheckAllAreUsed() const {
  const auto fail = [](const std::string& what) {
    throw std::invalid_argument(
        what +
        " is not passed to the function; name it in the arguments of "
        "register_kernel");
  };
  for (size_t i = 0; i < used_operands_.size(); ++i) {
    // An operand that is written in place is passed as the result.
    if (!used_operands_[i] && !IsAbsent(i) &&
        !HasResultAt(Operand(i).untyped_data())) {
      fail("operand " + std::to_string(i));
    }
  }
  for (size_t i = 0; i < used_results_.size(); ++i) {
    if (!used_results_[i]) fail("result " + std::to_string(i));
  }
  for (size_t i = 0; i < used_attributes_.size(); ++i) {
    if (!used_attributes_[i] && NameOfAttribute(i) != kAbsentOperands) {
      fail("attribute " + std::string(NameOfAttribute(i)));
    }
  }
}

}  // namespace torch_xla_ext::tvm_ffi
