#include "torch_xla_ext/csrc/launchers/torch_operator_arguments.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>

namespace torch_xla_ext {
namespace {

// Reads a text word by word.
class Words {
 public:
  Words(const char* name, std::string_view text) : name_(name), text_(text) {}

  bool empty() const { return next_ >= text_.size(); }

  // The next word. The word of a string may contain spaces: "s5:a b c".
  std::string_view Next() {
    if (empty()) Fail("is too short");
    size_t end;
    if (text_[next_] == 's') {
      const size_t colon = text_.find(':', next_);
      if (colon == std::string_view::npos) Fail("has a string without length");
      end = colon + 1 + Number(text_.substr(next_ + 1, colon - next_ - 1));
      if (end < next_ || end > text_.size()) Fail("ends in a string");
    } else {
      end = std::min(text_.find(' ', next_), text_.size());
    }
    const std::string_view word = text_.substr(next_, end - next_);
    next_ = end + 1;
    return word;
  }

  int64_t Number(std::string_view digits) const {
    const std::string text(digits);
    char* end;
    const int64_t value = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0') Fail("has a bad number");
    return value;
  }

  const at::Tensor& Element(const std::vector<at::Tensor>& tensors,
                            std::string_view digits) const {
    const int64_t index = Number(digits);
    if (index < 0 || index >= static_cast<int64_t>(tensors.size())) {
      Fail("names a buffer that the call does not have");
    }
    return tensors[index];
  }

  [[noreturn]] void Fail(const char* what) const {
    throw std::invalid_argument("attribute " + std::string(name_) + " " + what +
                                ": \"" + std::string(text_) + "\"");
  }

 private:
  const char* name_;
  std::string_view text_;
  size_t next_ = 0;
};

double ReadFloat(const Words& words, std::string_view digits) {
  const std::string text(digits);
  char* end;
  const double value =
      std::strtod(text.c_str(), &end);  // exact, because it is hexadecimal
  if (text.empty() || *end != '\0') words.Fail("has a bad number");
  return value;
}

// A number passed as a tensor; in type promotion it still counts as a number.
c10::IValue AsTensorIf(const c10::TypePtr& type, const at::Scalar& number) {
  if (type->kind() != c10::TypeKind::TensorType) return number;
  at::Tensor tensor = at::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

// Reads "r2", or "r2=1" for a result that lies in operand 1's buffer.
at::Tensor ReadResultBuffer(const Words& words, std::string_view word,
                            const OperatorCall& call) {
  const size_t equals = word.find('=');
  const at::Tensor& result =
      words.Element(call.results, word.substr(0, equals));
  if (equals == std::string_view::npos) return result;
  const at::Tensor& operand =
      words.Element(call.operands, word.substr(equals + 1));
  // XLA usually gives both the same buffer. If it does not, copy the operand's
  // values to the result's buffer.
  if (result.const_data_ptr() != operand.const_data_ptr()) {
    result.copy_(operand);
  }
  return result;
}

c10::IValue ReadValue(Words& words, const c10::TypePtr& type,
                      const OperatorCall& call) {
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return ReadValue(words, optional->getElementType(), call);
  }
  const std::string_view word = words.Next();
  if (word.empty()) words.Fail("has an empty word");
  const std::string_view rest = word.substr(1);
  switch (word[0]) {
    case 'n':
      return c10::IValue();
    case 't':
      return words.Element(call.operands, rest);
    case 'r':
      return ReadResultBuffer(words, rest, call);
    case 'b':
      return AsTensorIf(type, rest == "1");
    case 'i': {
      const int64_t value = words.Number(rest);
      if (type->kind() == c10::TypeKind::FloatType) {
        return static_cast<double>(value);
      }
      return AsTensorIf(type, value);
    }
    case 'f':
      return AsTensorIf(type, ReadFloat(words, rest));
    case 's':
      return std::string(rest.substr(rest.find(':') + 1));
    case 'd': {
      const auto& types = c10::getStringToDtypeMap();
      const auto found = types.find(std::string(rest));
      if (found == types.end()) words.Fail("has an unknown dtype");
      return static_cast<int64_t>(found->second);
    }
    case 'D':
      return call.device;
    case '[': {
      const auto list_type = type->cast<c10::ListType>();
      if (!list_type) words.Fail("has a list where the schema has none");
      c10::impl::GenericList list(list_type->getElementType());
      const int64_t size = words.Number(rest);
      for (int64_t i = 0; i < size; ++i) {
        list.push_back(ReadValue(words, list_type->getElementType(), call));
      }
      return list;
    }
    default:
      words.Fail("has an unknown word");
  }
}

std::string Described(c10::IntArrayRef sizes, at::ScalarType dtype) {
  std::ostringstream out;
  out << c10::toString(dtype) << sizes;
  return out.str();
}

void StoreTensor(const at::Tensor& returned, const at::Tensor& result) {
  if (returned.sizes() != result.sizes() ||
      returned.scalar_type() != result.scalar_type()) {
    throw std::runtime_error(
        "it returned " + Described(returned.sizes(), returned.scalar_type()) +
        ", but its fake function said " +
        Described(result.sizes(), result.scalar_type()));
  }
  result.copy_(returned);
}

void StoreValue(Words& words, const c10::IValue& value,
                const OperatorCall& call) {
  const std::string_view word = words.Next();
  const std::string_view rest = word.substr(1);
  const auto mismatch = [&] {
    throw std::runtime_error("it returned a " + value.tagKind() +
                             ", which its fake function did not (\"" +
                             std::string(word) + "\")");
  };
  switch (word[0]) {
    case '-':  // it already is in an argument's buffer
      return;
    case 'n':
      if (value.isTensor() ? value.toTensor().defined() : !value.isNone()) {
        mismatch();
      }
      return;
    case 'r':
      if (!value.isTensor() || !value.toTensor().defined()) mismatch();
      StoreTensor(value.toTensor(), words.Element(call.results, rest));
      return;
    case 'i':
      if (!value.isInt() || value.toInt() != words.Number(rest)) mismatch();
      return;
    case 'b':
      if (!value.isBool() || value.toBool() != (rest == "1")) mismatch();
      return;
    case 'f':
      if (!value.isDouble() || value.toDouble() != ReadFloat(words, rest)) {
        mismatch();
      }
      return;
    case '[': {
      if (!value.isList() || static_cast<int64_t>(value.toListRef().size()) !=
                                 words.Number(rest)) {
        mismatch();
      }
      for (const c10::IValue& element : value.toList().vec()) {
        StoreValue(words, element, call);
      }
      return;
    }
    default:
      words.Fail("has an unknown word");
  }
}

}  // namespace

torch::jit::Stack ReadArguments(const c10::FunctionSchema& schema,
                                const OperatorCall& call) {
  Words words("arguments", call.arguments);
  torch::jit::Stack stack;
  stack.reserve(schema.arguments().size());
  for (const c10::Argument& argument : schema.arguments()) {
    stack.push_back(ReadValue(words, argument.type(), call));
  }
  if (!words.empty()) words.Fail("has more than the operator's arguments");
  return stack;
}

void StoreReturns(const torch::jit::Stack& returns, const OperatorCall& call) {
  Words words("returns", call.returns);
  for (const c10::IValue& value : returns) StoreValue(words, value, call);
  if (!words.empty()) words.Fail("has more than the operator returns");
}

}  // namespace torch_xla_ext
