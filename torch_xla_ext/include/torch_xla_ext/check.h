// Checks that a call's operands and results are what the signature says.
#ifndef TORCH_XLA_EXT_CHECK_H_
#define TORCH_XLA_EXT_CHECK_H_

#include <cstdint>
#include <string>

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

// The checks of one call. Names are bound to what the first argument with them
// has; arguments are few, so that a search among the earlier ones does.
class ArgumentChecker {
 public:
  ArgumentChecker(const Signature& signature, const BufferView* views)
      : signature_(signature), views_(views) {}

  Status Check() const {
    for (int i = 0; i < signature_.num_arguments(); ++i) {
      if (views_[i].dtype == DType::kAbsent) {
        if (signature_.arguments[i].optional) continue;
        return Status::Error(ArgumentName(signature_, i), ": is missing");
      }
      XLA_KERNEL_RETURN_IF_ERROR(CheckDType(i));
      XLA_KERNEL_RETURN_IF_ERROR(CheckShape(i));
    }
    return Status::Ok();
  }

 private:
  bool Present(int index) const {
    return views_[index].dtype != DType::kAbsent;
  }

  Status CheckDType(int index) const {
    const Argument& argument = signature_.arguments[index];
    const DType came = views_[index].dtype;
    if (argument.variable < 0) {
      if (came == argument.dtype) return Status::Ok();
      return Status::Error(ArgumentName(signature_, index), ": expected dtype ",
                           DTypeName(argument.dtype), " but got ",
                           DTypeName(came));
    }
    const DTypeVariable& variable = signature_.variables[argument.variable];
    for (int i = 0; i < index; ++i) {
      if (signature_.arguments[i].variable != argument.variable) continue;
      if (!Present(i)) continue;
      if (came == views_[i].dtype) return Status::Ok();
      return Status::Error(ArgumentName(signature_, index), ": expected dtype ",
                           DTypeName(views_[i].dtype), " but got ",
                           DTypeName(came), "; ", variable.name, " is that of ",
                           ArgumentName(signature_, i));
    }
    std::string options;
    for (int i = 0; i < variable.num_options; ++i) {
      if (came == variable.options[i]) return Status::Ok();
      if (i > 0) options += i + 1 == variable.num_options ? " or " : ", ";
      options += DTypeName(variable.options[i]);
    }
    return Status::Error(ArgumentName(signature_, index), ": expected dtype ",
                         options, " but got ", DTypeName(came));
  }

  // Which dimensions of an argument one dimension of the signature stands for.
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

  Status CheckShape(int index) const {
    const Argument& argument = signature_.arguments[index];
    const int rank = views_[index].rank;
    if (argument.star < 0 ? rank != argument.num_dims
                          : rank < argument.num_dims - 1) {
      return Status::Error(ArgumentName(signature_, index), ": expected rank ",
                           argument.star < 0 ? "" : "of at least ",
                           argument.num_dims - (argument.star < 0 ? 0 : 1),
                           " but got ", rank);
    }
    for (int i = 0; i < argument.num_dims; ++i) {
      XLA_KERNEL_RETURN_IF_ERROR(CheckDim(index, i));
    }
    return Status::Ok();
  }

  Status CheckDim(int index, int dim) const {
    const Dim& declared = signature_.arguments[index].dims[dim];
    const Range range = RangeOf(index, dim);
    const int64_t* came = views_[index].dims + range.begin;
    if (declared.size != kNamed) {
      if (*came == declared.size) return Status::Ok();
      return Status::Error(ArgumentName(signature_, index),
                           ": expected dimension ", range.begin, " to be ",
                           declared.size, " but got ", *came);
    }
    // The first argument that has this name, which may be this one.
    for (int i = 0; i <= index; ++i) {
      if (!Present(i)) continue;
      const Argument& earlier = signature_.arguments[i];
      for (int j = 0; j < (i == index ? dim : earlier.num_dims); ++j) {
        if (earlier.dims[j].name != declared.name ||
            earlier.dims[j].star != declared.star) {
          continue;
        }
        const Range other = RangeOf(i, j);
        return CompareDims(index, declared, range, i, other);
      }
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
    const std::string where = "; " + std::string(declared.name) +
                              " is that of " +
                              ArgumentName(signature_, other_index);
    if (declared.star) {
      return Status::Error(ArgumentName(signature_, index),
                           ": expected dimensions ",
                           DimsText(expected, other.count), " but got ",
                           DimsText(came, range.count), where);
    }
    return Status::Error(ArgumentName(signature_, index),
                         ": expected dimension ", range.begin, " to be ",
                         *expected, " but got ", *came, where);
  }

  const Signature& signature_;
  const BufferView* views_;
};

}  // namespace internal

// `views` are the operands and then the results of `signature`. A failure names
// the argument, what was expected and what came.
inline Status CheckArguments(const Signature& signature,
                             const BufferView* views) {
  return internal::ArgumentChecker(signature, views).Check();
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CHECK_H_
