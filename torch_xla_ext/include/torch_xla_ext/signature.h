// A kernel's signature: its operands and results, as one line of text.
//
//   XlaGpuGather(table: T[rows, *row], index: S32[n], scale?: F32[])
//       -> (out: T[n, *row]) where T: F16 | BF16 | F32
//
// The name is the custom-call target. Operands and results follow, each with a
// dtype and dimensions:
//   - a dtype is one of dtype.h, or a variable, whose possible dtypes follow
//     `where`. A variable is the same dtype wherever it appears;
//   - a dimension is a number, a name, or `2 * n`, `n + 1`, `2 * n - 1`. A name
//     is the same size wherever it appears; with a star, it is any number of
//     dimensions. `[]` is a scalar. A name that is also a parameter's (int32_t
//     or int64_t) equals the parameter;
// - an array is row-major, or has the layout in braces after its dimensions, as
// XLA writes it, with the fastest-changing dimension first:
//     `x: F32[n, k]{0, 1}` is column-major;
//   - an operand with a question mark is optional;
//   - a result without dtype and dimensions, `-> (cache)`, shares the buffer of
//     the operand of that name.
// `where` lists constraints, separated by commas:
//   - `T: F16 | BF16`: the dtypes that a variable can be; `C: T | F8E4M3FN`
//     means the dtype of T, or F8E4M3FN;
//   - `n: 64 | 128`, `n: 8..256`, `n: 1..`: the values that a size can have;
//   - `n % m == 0`, `n % 8 == 0`: a size is a multiple.
// All checks of a call's shapes and dtypes, the layout of the payload, and the
// Python side's checks and packing follow from the signature.
//
// The compiler parses signatures: a mistake in one is a compile error, whose
// note shows the `throw` with the reason.
#ifndef TORCH_XLA_EXT_SIGNATURE_H_
#define TORCH_XLA_EXT_SIGNATURE_H_

#include <cstdint>
#include <string_view>

#include "torch_xla_ext/dtype.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {

inline constexpr int kMaxArguments = 32;  // operands and results together
inline constexpr int kMaxDims = 8;        // per array, a starred one included
inline constexpr int kMaxVariables = 4;
inline constexpr int kMaxOptions = 20;
inline constexpr int kMaxConstraints = 8;
inline constexpr int kMaxChoices = 8;
inline constexpr int64_t kNamed = -1;

// `factor * name + offset`, or a number.
struct Dim {
  std::string_view text;
  std::string_view name;  // empty for a number
  int64_t size = kNamed;
  int64_t factor = 1;
  int64_t offset = 0;
  bool star = false;
};

struct Argument {
  std::string_view name;
  bool optional = false;
  DType dtype = DType::kAbsent;  // if the dtype is fixed
  int variable = -1;             // if the dtype is a variable
  int num_dims = 0;
  int star = -1;   // the dimension with a star
  int alias = -1;  // of a result: the operand whose buffer it shares
  // The dimensions in memory order, the fastest-changing first; empty for a
  // row-major array.
  int layout_size = 0;
  int layout[kMaxDims] = {};
  Dim dims[kMaxDims];
};

struct DTypeVariable {
  std::string_view name;
  int num_options = 0;
  DType options[kMaxOptions] = {};
  int other = -1;  // an earlier variable, whose dtype it can also have
};

// A constraint on a size: one of the choices, or `low` to `high`, or a
// multiple.
struct Constraint {
  std::string_view name;
  int num_choices = 0;
  int64_t choices[kMaxChoices] = {};
  int64_t low = -1;           // -1: no limits
  int64_t high = -1;          // -1: none
  std::string_view divisor;   // a number or a name
  int64_t divisor_size = -1;  // if it is a number
};

struct Signature {
  std::string_view text;
  std::string_view target;
  int num_operands = 0;
  int num_results = 0;
  int num_variables = 0;
  Argument arguments[kMaxArguments];  // operands, then results
  DTypeVariable variables[kMaxVariables];
  int num_constraints = 0;
  Constraint constraints[kMaxConstraints];

  constexpr int num_arguments() const { return num_operands + num_results; }
  constexpr bool has_optional() const {
    for (int i = 0; i < num_operands; ++i) {
      if (arguments[i].optional) return true;
    }
    return false;
  }
  // Whether `name` is a size of an array.
  constexpr bool HasSize(std::string_view size_name) const {
    for (int i = 0; i < num_arguments(); ++i) {
      for (int j = 0; j < arguments[i].num_dims; ++j) {
        const Dim& dim = arguments[i].dims[j];
        if (!dim.star && dim.name == size_name) return true;
      }
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
    if (!Accept("->")) throw "expected `->` after the operands";
    ParseArguments(&signature, &signature.num_results);
    if (signature.num_results == 0) throw "a kernel must have a result";
    if (signature.num_operands == 0) throw "a kernel must have an operand";
    // The space distinguishes `where` from a name, as in Python's parser.
    if (Accept("where ")) {
      do {
        ParseVariable(&signature);
      } while (Accept(","));
      if (!AtEnd()) throw "expected `,`, `|` or the end after a constraint";
    }
    if (!AtEnd()) throw "expected `where ` or the end after the results";
    for (int i = 0; i < signature.num_arguments(); ++i) {
      Resolve(&signature, &signature.arguments[i]);
    }
    for (int i = 0; i < signature.num_constraints; ++i) {
      const Constraint& constraint = signature.constraints[i];
      if (!signature.HasSize(constraint.name) ||
          (!constraint.divisor.empty() && constraint.divisor_size < 0 &&
           !signature.HasSize(constraint.divisor))) {
        throw "a size after `where` that no operand or result has";
      }
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
  constexpr bool AtEnd() {
    SkipSpace();
    return at_ == text_.size();
  }
  constexpr std::string_view Word() {
    SkipSpace();
    const size_t begin = at_;
    while (at_ < text_.size() && IsWord(text_[at_])) ++at_;
    if (at_ == begin) throw "expected a name";
    return text_.substr(begin, at_ - begin);
  }

  constexpr bool NextIsDigit() {
    SkipSpace();
    return at_ < text_.size() && IsDigit(text_[at_]);
  }
  constexpr int64_t Number() {
    int64_t number = 0;
    for (const char c : Word()) {
      if (!IsDigit(c))
        throw "expected a number, or a name that begins with a letter";
      if (number > (int64_t{1} << 53)) throw "a number is too large";
      number = number * 10 + (c - '0');
    }
    return number;
  }

  constexpr void ParseArguments(Signature* signature, int* count) {
    if (!Accept("(")) throw "expected `(` before operands or results";
    if (Accept(")")) return;
    do {
      const int index = signature->num_arguments();
      if (index == kMaxArguments) throw "too many operands and results";
      const bool is_result = count == &signature->num_results;
      ParseArgument(*signature, is_result, &signature->arguments[index]);
      const Argument& argument = signature->arguments[index];
      for (int i = 0; i < index; ++i) {
        if (signature->arguments[i].name == argument.name &&
            argument.alias != i) {
          throw "two operands or results have the same name";
        }
      }
      ++*count;
      if (is_result && argument.optional) throw "a result must not be optional";
    } while (Accept(","));
    if (!Accept(")")) throw "expected `,` or `)` after an operand or result";
  }

  constexpr void ParseArgument(const Signature& signature, bool is_result,
                               Argument* argument) {
    argument->name = Word();
    argument->optional = Accept("?");
    if (!Accept(":")) {
      if (!is_result) throw "expected `:` and a dtype after an operand's name";
      ParseAlias(signature, argument);
      return;
    }
    dtype_names_[num_dtype_names_++] = Word();
    if (!Accept("[")) throw "expected `[` and a shape after a dtype";
    if (!Accept("]")) ParseDims(argument);
    if (Accept("{")) ParseLayout(argument);
  }

  constexpr void ParseDims(Argument* argument) {
    do {
      if (argument->num_dims == kMaxDims) throw "too many dimensions";
      ParseDim(&argument->dims[argument->num_dims]);
      if (argument->dims[argument->num_dims].star) {
        if (argument->star >= 0) throw "two stars in one shape";
        argument->star = argument->num_dims;
      }
      ++argument->num_dims;
    } while (Accept(","));
    if (!Accept("]")) throw "expected `,` or `]` after a dimension";
  }

  constexpr void ParseLayout(Argument* argument) {
    if (argument->star >= 0)
      throw "a layout needs a fixed number of dimensions";
    do {
      const int64_t dim = Number();
      if (dim >= argument->num_dims) throw "a layout's dimension is not there";
      for (int i = 0; i < argument->layout_size; ++i) {
        if (argument->layout[i] == dim)
          throw "a dimension is twice in a layout";
      }
      argument->layout[argument->layout_size++] = static_cast<int>(dim);
    } while (Accept(","));
    if (!Accept("}")) throw "expected `,` or `}` after a layout's dimension";
    if (argument->layout_size != argument->num_dims) {
      throw "a layout must have each dimension once";
    }
  }

  // Parses a result that is an operand: the signature has only its name.
  constexpr void ParseAlias(const Signature& signature, Argument* argument) {
    for (int i = 0; i < signature.num_operands; ++i) {
      if (signature.arguments[i].name != argument->name) continue;
      if (signature.arguments[i].optional || argument->optional) {
        throw "an operand that is written to must not be optional";
      }
      *argument = signature.arguments[i];
      argument->alias = i;
      dtype_names_[num_dtype_names_++] = dtype_names_[i];
      return;
    }
    throw "a result without a dtype is not an operand";
  }

  constexpr void ParseDim(Dim* dim) {
    SkipSpace();
    const size_t begin = at_;
    size_t end = 0;
    if (Accept("*")) {
      if (NextIsDigit()) throw "expected a name after a star";
      dim->star = true;
      dim->name = Word();
      end = at_;
    } else {
      if (NextIsDigit()) {
        dim->size = Number();
        end = at_;
      }
      if (dim->size == kNamed || Accept("*")) {
        if (NextIsDigit()) throw "a number times a number";
        if (dim->size != kNamed) dim->factor = dim->size;
        if (dim->factor == 0) throw "a dimension is 0 times a size";
        dim->size = kNamed;
        dim->name = Word();
        end = at_;
        const bool plus = Accept("+");
        if (plus || Accept("-")) {
          dim->offset = plus ? Number() : -Number();
          end = at_;
        }
      }
    }
    dim->text = text_.substr(begin, end - begin);
  }

  // One of the constraints after `where`.
  constexpr void ParseVariable(Signature* signature) {
    const std::string_view name = Word();
    if (Accept("%")) {
      ParseMultiple(signature, name);
      return;
    }
    if (!Accept(":")) throw "expected `:` or `%` after a name after `where`";
    if (NextIsDigit()) {
      ParseSizes(signature, name);
      return;
    }
    if (signature->num_variables == kMaxVariables) throw "too many variables";
    DTypeVariable& variable = signature->variables[signature->num_variables++];
    variable.name = name;
    if (DTypeIndex(variable.name) >= 0)
      throw "a variable has the name of a dtype";
    for (int i = 0; i + 1 < signature->num_variables; ++i) {
      if (signature->variables[i].name == variable.name) {
        throw "a variable is declared twice after `where`";
      }
    }
    do {
      if (variable.num_options == kMaxOptions) throw "too many dtypes";
      const std::string_view option = Word();
      const int index = DTypeIndex(option);
      if (index >= 0) {
        variable.options[variable.num_options++] = kDTypes[index].dtype;
        continue;
      }
      const int before = variable.other;
      for (int i = 0; i + 1 < signature->num_variables; ++i) {
        if (signature->variables[i].name == option) variable.other = i;
      }
      if (variable.other == before) throw "an unknown dtype after `where`";
      if (before >= 0 || variable.num_options > 0) {
        throw "another variable must be the first of the options";
      }
    } while (Accept("|"));
  }

  constexpr Constraint* AddConstraint(Signature* signature,
                                      std::string_view name) {
    if (signature->num_constraints == kMaxConstraints) {
      throw "too many constraints on sizes after `where`";
    }
    Constraint* added = &signature->constraints[signature->num_constraints++];
    added->name = name;
    return added;
  }
  constexpr void ParseMultiple(Signature* signature, std::string_view name) {
    Constraint* constraint = AddConstraint(signature, name);
    const bool is_number = NextIsDigit();
    const size_t begin = at_;
    constraint->divisor = Word();
    if (is_number) {
      at_ = begin;
      constraint->divisor_size = Number();
      if (constraint->divisor_size == 0) throw "a multiple of 0";
    }
    if (!Accept("==") || Number() != 0) throw "expected `== 0` after `%`";
  }
  constexpr void ParseSizes(Signature* signature, std::string_view name) {
    Constraint* constraint = AddConstraint(signature, name);
    const int64_t first = Number();
    if (Accept("..")) {
      constraint->low = first;
      if (NextIsDigit()) {
        constraint->high = Number();
        if (constraint->high < first) throw "an empty range";
      }
      return;
    }
    constraint->choices[constraint->num_choices++] = first;
    while (Accept("|")) {
      if (constraint->num_choices == kMaxChoices) throw "too many choices";
      constraint->choices[constraint->num_choices++] = Number();
    }
  }

  constexpr void Resolve(Signature* signature, Argument* argument) {
    const std::string_view name = dtype_names_[argument - signature->arguments];
    for (int i = 0; i < signature->num_variables; ++i) {
      if (signature->variables[i].name == name) argument->variable = i;
    }
    if (argument->variable >= 0) return;
    const int index = DTypeIndex(name);
    if (index < 0) throw "an unknown dtype that `where` does not declare";
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
