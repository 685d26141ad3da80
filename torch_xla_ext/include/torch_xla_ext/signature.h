// A kernel's signature: what it is called with, as one line of text.
//
//   XlaGpuGather(table: T[rows, *row], index: S32[n], scale?: F32[])
//       -> (out: T[n, *row]) where T: F16 | BF16 | F32
//
// The name is that of the custom-call target. Then come operands and results,
// each with a dtype and its dimensions:
//   - a dtype is one of dtype.h, or a variable, which stands for one of those
//     that follow `where`, the same everywhere;
//   - a dimension is a number, or a name, which stands for one size, the same
//     everywhere; a name with a star stands for any number of dimensions, the
//     same everywhere. `[]` is a scalar.
//   - an operand with a question mark can be left out.
// From it come all checks of a call's shapes and dtypes, the layout of the
// payload, and the Python side's checks and packing.
//
// The compiler parses signatures: a fault in one is an error when the kernel is
// compiled, whose note shows the `throw` with the reason.
#ifndef TORCH_XLA_EXT_SIGNATURE_H_
#define TORCH_XLA_EXT_SIGNATURE_H_

#include <cstdint>
#include <string_view>

#include "torch_xla_ext/dtype.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {

inline constexpr int kMaxArguments = 32;  // operands and results together
inline constexpr int kMaxDims = 8;        // in a signature; a star is one
inline constexpr int kMaxVariables = 4;
inline constexpr int kMaxOptions = 17;
inline constexpr int64_t kNamed = -1;

struct Dim {
  std::string_view name;  // empty for a number
  int64_t size = kNamed;
  bool star = false;
};

struct Argument {
  std::string_view name;
  bool optional = false;
  DType dtype = DType::kAbsent;  // of a fixed dtype
  int variable = -1;             // of a dtype that is one
  int num_dims = 0;
  int star = -1;  // the dimension that has a star
  Dim dims[kMaxDims];
};

struct DTypeVariable {
  std::string_view name;
  int num_options = 0;
  DType options[kMaxOptions] = {};
};

struct Signature {
  std::string_view text;
  std::string_view target;
  int num_operands = 0;
  int num_results = 0;
  int num_variables = 0;
  Argument arguments[kMaxArguments];  // operands, then results
  DTypeVariable variables[kMaxVariables];

  constexpr int num_arguments() const { return num_operands + num_results; }
  constexpr bool has_optional() const {
    for (int i = 0; i < num_operands; ++i) {
      if (arguments[i].optional) return true;
    }
    return false;
  }
};

namespace internal {

class SignatureParser {
 public:
  constexpr explicit SignatureParser(std::string_view text) : text_(text) {}

  constexpr Signature Parse() {
    Signature signature;
    signature.text = text_;
    signature.target = Word();
    ParseArguments(&signature, &signature.num_operands);
    Expect("->");
    ParseArguments(&signature, &signature.num_results);
    if (signature.num_results == 0) throw "a kernel has at least one result";
    if (signature.num_operands == 0) throw "a kernel has at least one operand";
    // The space tells it from a name, to Python's parser as well.
    if (Accept("where ")) {
      do {
        ParseVariable(&signature);
      } while (Accept(","));
    }
    SkipSpace();
    if (at_ != text_.size()) throw "text after the end of the signature";
    for (int i = 0; i < signature.num_arguments(); ++i) {
      Resolve(&signature, &signature.arguments[i]);
    }
    return signature;
  }

 private:
  static constexpr bool IsWord(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_';
  }
  static constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }

  constexpr void SkipSpace() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  constexpr bool Accept(std::string_view token) {
    SkipSpace();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }
  constexpr void Expect(std::string_view token) {
    if (!Accept(token)) throw "a bracket, colon or arrow is missing";
  }
  constexpr std::string_view Word() {
    SkipSpace();
    const size_t begin = at_;
    while (at_ < text_.size() && IsWord(text_[at_])) ++at_;
    if (at_ == begin) throw "a name is missing";
    return text_.substr(begin, at_ - begin);
  }

  constexpr void ParseArguments(Signature* signature, int* count) {
    Expect("(");
    if (Accept(")")) return;
    do {
      const int index = signature->num_arguments();
      if (index == kMaxArguments) throw "too many operands and results";
      ParseArgument(&signature->arguments[index]);
      for (int i = 0; i < index; ++i) {
        if (signature->arguments[i].name == signature->arguments[index].name) {
          throw "two operands or results have one name";
        }
      }
      ++*count;
      if (count == &signature->num_results &&
          signature->arguments[index].optional) {
        throw "a result is not optional";
      }
    } while (Accept(","));
    Expect(")");
  }

  constexpr void ParseArgument(Argument* argument) {
    argument->name = Word();
    argument->optional = Accept("?");
    Expect(":");
    dtype_names_[num_dtype_names_++] = Word();
    Expect("[");
    if (Accept("]")) return;
    do {
      if (argument->num_dims == kMaxDims) throw "too many dimensions";
      Dim& dim = argument->dims[argument->num_dims];
      if (Accept("*")) {
        if (argument->star >= 0) throw "two stars in one shape";
        dim.star = true;
        argument->star = argument->num_dims;
      }
      dim.name = Word();
      if (IsDigit(dim.name[0])) {
        if (dim.star) throw "a star before a number";
        dim.size = 0;
        for (const char c : dim.name) {
          if (!IsDigit(c)) throw "a dimension's name begins with a digit";
          if (dim.size > (int64_t{1} << 53)) throw "a dimension is too large";
          dim.size = dim.size * 10 + (c - '0');
        }
        dim.name = {};
      }
      ++argument->num_dims;
    } while (Accept(","));
    Expect("]");
  }

  constexpr void ParseVariable(Signature* signature) {
    if (signature->num_variables == kMaxVariables) throw "too many variables";
    DTypeVariable& variable = signature->variables[signature->num_variables++];
    variable.name = Word();
    if (DTypeIndex(variable.name) >= 0) throw "a variable named as a dtype";
    for (int i = 0; i + 1 < signature->num_variables; ++i) {
      if (signature->variables[i].name == variable.name) {
        throw "a variable stands after `where` twice";
      }
    }
    Expect(":");
    do {
      if (variable.num_options == kMaxOptions) throw "too many dtypes";
      const int index = DTypeIndex(Word());
      if (index < 0) throw "an unknown dtype after `where`";
      variable.options[variable.num_options++] = kDTypes[index].dtype;
    } while (Accept("|"));
  }

  constexpr void Resolve(Signature* signature, Argument* argument) {
    const std::string_view name = dtype_names_[argument - signature->arguments];
    for (int i = 0; i < signature->num_variables; ++i) {
      if (signature->variables[i].name == name) argument->variable = i;
    }
    if (argument->variable >= 0) return;
    const int index = DTypeIndex(name);
    if (index < 0) throw "a dtype that is neither known nor after `where`";
    argument->dtype = kDTypes[index].dtype;
  }

  std::string_view text_;
  size_t at_ = 0;
  int num_dtype_names_ = 0;
  std::string_view dtype_names_[kMaxArguments] = {};
};

}  // namespace internal

// `inline constexpr Signature kFoo = ParseSignature("XlaGpuFoo(…) -> (…)");`
constexpr Signature ParseSignature(std::string_view text) {
  return internal::SignatureParser(text).Parse();
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_SIGNATURE_H_
