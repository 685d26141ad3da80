// Checks that a call's operands and results match the signature.
#ifndef TORCH_XLA_EXT_CHECK_H_
#define TORCH_XLA_EXT_CHECK_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "torch_xla_ext/buffer.h"
#include "torch_xla_ext/signature.h"
#include "torch_xla_ext/status.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {
namespace internal {

// "operand 1 (b)"; `index` counts operands, then results.
inline std::string ArgumentName(const Signature& signature, int index) {
  const bool operand = index < signature.num_operands;
  const int number = operand ? index : index - signature.num_operands;
  return (operand ? "operand " : "result ") + std::to_string(number) + " (" +
         std::string(signature.arguments[index].name) + ")";
}

inline std::string DTypeName(DType dtype) {
  const DTypeInfo* info = FindDType(dtype);
  if (info != nullptr) return std::string(info->name);
  return "type " + std::to_string(static_cast<int>(dtype));
}

inline std::string DimsText(const int64_t* dims, int count) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

// "[rows, *row]", as the signature declares it.
inline std::string ShapeText(const Argument& argument) {
  std::string text = "[";
  for (int i = 0; i < argument.num_dims; ++i) {
    if (i > 0) text += ", ";
    text += argument.dims[i].text;
  }
  return text + "]";
}

// A size that a parameter gives.
struct NamedSize {
  std::string_view name;
  int64_t size;
};

// The checks of one call. A name is bound to the size in the first argument
// with this name, or to a parameter.
class ArgumentChecker {
 public:
  ArgumentChecker(const Signature& signature, const BufferView* views,
                  const std::vector<NamedSize>& sizes)
      : signature_(signature), views_(views) {
    for (const NamedSize& size : sizes) {
      known_.push_back({size.name, size.size, kParameter});
    }
  }

  Status Check() {
    for (int i = 0; i < signature_.num_arguments(); ++i) {
      if (!Present(i)) {
        if (signature_.arguments[i].optional) continue;
        return Status::Error(ArgumentName(signature_, i), ": is missing");
      }
      XLA_KERNEL_RETURN_IF_ERROR(CheckDType(i));
      XLA_KERNEL_RETURN_IF_ERROR(CheckShape(i));
    }
    for (int i = 0; i < signature_.num_constraints; ++i) {
      XLA_KERNEL_RETURN_IF_ERROR(CheckConstraint(signature_.constraints[i]));
    }
    return Status::Ok();
  }

 private:
  static constexpr int kParameter = -1;

  // The size that a name stands for, and the argument that determines it.
  struct Known {
    std::string_view name;
    int64_t size;
    int index;
  };

  bool Present(int index) const {
    return views_[index].dtype != DType::kAbsent;
  }
  const Known* Find(std::string_view name) const {
    for (const Known& known : known_) {
      if (known.name == name) return &known;
    }
    return nullptr;
  }
  std::string ThatOf(int index) const {
    if (index == kParameter) return "a parameter";
    return "that of " + ArgumentName(signature_, index);
  }
  // "a, b or c".
  static std::string Alternatives(const std::vector<std::string>& options) {
    std::string text;
    for (size_t i = 0; i < options.size(); ++i) {
      if (i > 0) text += i + 1 == options.size() ? " or " : ", ";
      text += options[i];
    }
    return text;
  }
  // The first argument present whose dtype is this variable, or -1.
  int FirstOf(int variable) const {
    for (int i = 0; i < signature_.num_arguments(); ++i) {
      if (signature_.arguments[i].variable == variable && Present(i)) return i;
    }
    return -1;
  }

  Status CheckDType(int index) const {
    const Argument& argument = signature_.arguments[index];
    const DType came = views_[index].dtype;
    std::vector<DType> options;
    std::string reason;
    const int first = argument.variable < 0 ? -1 : FirstOf(argument.variable);
    if (argument.variable < 0) {
      options.push_back(argument.dtype);
    } else if (first != index) {
      options.push_back(views_[first].dtype);
      reason = ReasonOf(argument.variable, first);
    } else {
      AddOptions(argument.variable, &options, &reason);
    }
    std::vector<std::string> names;
    for (const DType option : options) {
      if (came == option || (came == U8 && IsPassedAsBytes(option))) {
        return Status::Ok();
      }
      const std::string name = DTypeName(option);
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
    }
    return Status::Error(ArgumentName(signature_, index), ": expected dtype ",
                         Alternatives(names), " but got ", DTypeName(came),
                         reason);
  }
  std::string ReasonOf(int variable, int argument) const {
    return "; " + std::string(signature_.variables[variable].name) + " is " +
           ThatOf(argument);
  }
  // The dtypes that a variable may be, those of another variable first.
  void AddOptions(int variable, std::vector<DType>* options,
                  std::string* reason) const {
    const DTypeVariable& declared = signature_.variables[variable];
    if (declared.other >= 0) {
      const int first = FirstOf(declared.other);
      if (first >= 0) {
        options->push_back(views_[first].dtype);
        *reason = ReasonOf(declared.other, first);
      } else {
        AddOptions(declared.other, options, reason);
      }
    }
    options->insert(options->end(), declared.options,
                    declared.options + declared.num_options);
  }

  // The dimensions of an argument that one dimension of the signature covers.
  struct Range {
    int begin;
    int count;
  };
  Range RangeOf(int index, int dim) const {
    const Argument& argument = signature_.arguments[index];
    const int star_count = views_[index].rank - (argument.num_dims - 1);
    if (argument.star < 0 || dim < argument.star) return {dim, 1};
    if (dim == argument.star) return {dim, star_count};
    return {dim - 1 + star_count, 1};
  }

  Status CheckShape(int index) {
    const Argument& argument = signature_.arguments[index];
    const int rank = views_[index].rank;
    if (argument.star < 0 ? rank != argument.num_dims
                          : rank < argument.num_dims - 1) {
      return Status::Error(ArgumentName(signature_, index), ": expected rank ",
                           argument.star < 0 ? "" : "of at least ",
                           argument.num_dims - (argument.star < 0 ? 0 : 1), " ",
                           ShapeText(argument), " but got ", rank, " ",
                           DimsText(views_[index].dims, rank));
    }
    for (int i = 0; i < argument.num_dims; ++i) {
      XLA_KERNEL_RETURN_IF_ERROR(argument.dims[i].star ? CheckStar(index, i)
                                                       : CheckDim(index, i));
    }
    return Status::Ok();
  }

  Status WrongDim(int index, int position, std::string expected, int64_t came,
                  std::string reason) const {
    return Status::Error(ArgumentName(signature_, index),
                         ": expected dimension ", position, " to be ", expected,
                         " but got ", came, reason);
  }

  Status CheckDim(int index, int dim) {
    const Dim& declared = signature_.arguments[index].dims[dim];
    const int position = RangeOf(index, dim).begin;
    const int64_t came = views_[index].dims[position];
    if (declared.size != kNamed) {
      if (came == declared.size) return Status::Ok();
      return WrongDim(index, position, std::to_string(declared.size), came, "");
    }
    const Known* known = Find(declared.name);
    if (known == nullptr) {
      const int64_t size = came - declared.offset;
      if ((declared.offset != 0 && size < 0) || size % declared.factor != 0) {
        return WrongDim(index, position, std::string(declared.text), came, "");
      }
      known_.push_back({declared.name, size / declared.factor, index});
      return Status::Ok();
    }
    int64_t expected = 0;
    if (!__builtin_mul_overflow(declared.factor, known->size, &expected) &&
        !__builtin_add_overflow(expected, declared.offset, &expected) &&
        came == expected) {
      return Status::Ok();
    }
    std::string reason = "; ";
    if (declared.text != declared.name) {
      reason += "it is " + std::string(declared.text) + ", and ";
    }
    reason += std::string(declared.name) + " is " + ThatOf(known->index);
    return WrongDim(index, position, std::to_string(expected), came, reason);
  }

  Status CheckStar(int index, int dim) const {
    const Dim& declared = signature_.arguments[index].dims[dim];
    // Compare with the first argument that has this name, if it is another.
    for (int i = 0; i < index; ++i) {
      const Argument& earlier = signature_.arguments[i];
      if (!Present(i) || earlier.star < 0 ||
          earlier.dims[earlier.star].name != declared.name) {
        continue;
      }
      return CompareDims(index, declared, RangeOf(index, dim), i,
                         RangeOf(i, earlier.star));
    }
    return Status::Ok();
  }

  Status CompareDims(int index, const Dim& declared, Range range,
                     int other_index, Range other) const {
    const int64_t* came = views_[index].dims + range.begin;
    const int64_t* expected = views_[other_index].dims + other.begin;
    bool equal = range.count == other.count;
    for (int i = 0; equal && i < range.count; ++i) {
      equal = came[i] == expected[i];
    }
    if (equal) return Status::Ok();
    return Status::Error(ArgumentName(signature_, index),
                         ": expected dimensions ",
                         DimsText(expected, other.count), " but got ",
                         DimsText(came, range.count), "; ", declared.name,
                         " is ", ThatOf(other_index));
  }

  // Sizes of omitted operands are unknown and not constrained.
  Status CheckConstraint(const Constraint& constraint) const {
    const Known* known = Find(constraint.name);
    if (known == nullptr) return Status::Ok();
    const int64_t size = known->size;
    std::string expected;
    std::string reason;
    if (!constraint.divisor.empty()) {
      const Known* divisor =
          constraint.divisor_size < 0 ? Find(constraint.divisor) : nullptr;
      if (constraint.divisor_size < 0 && divisor == nullptr) {
        return Status::Ok();
      }
      const int64_t number =
          divisor == nullptr ? constraint.divisor_size : divisor->size;
      if (number != 0 && size % number == 0) return Status::Ok();
      expected = "a multiple of " + std::string(constraint.divisor);
      if (divisor != nullptr) {
        expected += ", " + std::to_string(number) + ",";
        reason = "; " + std::string(constraint.divisor) + " is " +
                 ThatOf(divisor->index);
      }
    } else if (constraint.num_choices > 0) {
      std::vector<std::string> choices;
      for (int i = 0; i < constraint.num_choices; ++i) {
        if (size == constraint.choices[i]) return Status::Ok();
        choices.push_back(std::to_string(constraint.choices[i]));
      }
      expected = Alternatives(choices);
    } else {
      const bool open = constraint.high < 0;
      if (size >= constraint.low && (open || size <= constraint.high)) {
        return Status::Ok();
      }
      const std::string low = std::to_string(constraint.low);
      expected = open ? "at least " + low
                      : low + " to " + std::to_string(constraint.high);
    }
    return Status::Error(known->index == kParameter
                             ? "a parameter"
                             : ArgumentName(signature_, known->index),
                         ": expected ", constraint.name, " to be ", expected,
                         " but got ", size, reason);
  }

  const Signature& signature_;
  const BufferView* views_;
  std::vector<Known> known_;
};

}  // namespace internal

// `views` are the operands, then the results of `signature`; `sizes` are those
// that parameters give. An error names the argument, and what was expected and
// received.
inline Status CheckArguments(
    const Signature& signature, const BufferView* views,
    const std::vector<internal::NamedSize>& sizes = {}) {
  return internal::ArgumentChecker(signature, views, sizes).Check();
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CHECK_H_
