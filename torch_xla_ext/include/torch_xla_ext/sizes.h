// Declares the size of a workspace: a result's dimension that follows from the
// operands' sizes in a way that a signature cannot express.
//
//   int64_t WorkspaceSize(const torch_xla_ext::Sizes& sizes) {
//     return 2 * sizes["num_seqs"] * sizes["head_dim"];
//   }
//   XLA_KERNEL_SIZE(XlaGpuFoo, kFoo, workspace_size, WorkspaceSize);
//
// Use the macro in one file of the kernel, in the global namespace. Python
// calls the function before a call is traced; the kernel itself accepts a
// workspace of any size, or checks the size.
#ifndef TORCH_XLA_EXT_SIZES_H_
#define TORCH_XLA_EXT_SIZES_H_

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "torch_xla_ext/dtype.h"
#include "torch_xla_ext/signature.h"

namespace [[gnu::visibility("hidden")]] torch_xla_ext {

// The sizes of a call's operands, by their names in the signature, without
// names that have a star.
class Sizes {
 public:
  // The size of each name, in the order of its first appearance in the
  // operands; -1 if no present operand gives it. The dtype of each operand.
  Sizes(const Signature& signature, const int64_t* sizes, const uint8_t* dtypes)
      : signature_(signature), sizes_(sizes), dtypes_(dtypes) {
    for (int i = 0; i < signature.num_operands; ++i) {
      const Argument& operand = signature.arguments[i];
      for (int j = 0; j < operand.num_dims; ++j) {
        const Dim& dim = operand.dims[j];
        if (dim.star || dim.name.empty() || Index(dim.name) >= 0) continue;
        names_.push_back(dim.name);
      }
    }
  }

  int64_t operator[](std::string_view name) const {
    const int index = Index(name);
    if (index < 0) throw std::out_of_range(std::string(name));
    return sizes_[index];
  }

  DType dtype(std::string_view operand) const {
    for (int i = 0; i < signature_.num_operands; ++i) {
      if (signature_.arguments[i].name == operand) {
        return static_cast<DType>(dtypes_[i]);
      }
    }
    throw std::out_of_range(std::string(operand));
  }

 private:
  int Index(std::string_view name) const {
    for (size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == name) return static_cast<int>(i);
    }
    return -1;
  }

  const Signature& signature_;
  const int64_t* sizes_;
  const uint8_t* dtypes_;
  std::vector<std::string_view> names_;
};

namespace internal {

// -1 if the function asked for an unknown size.
template <const Signature& kSignature, int64_t (*kFunction)(const Sizes&)>
int64_t CallSize(const int64_t* sizes, const uint8_t* dtypes) {
  try {
    return kFunction(Sizes(kSignature, sizes, dtypes));
  } catch (...) {
    return -1;
  }
}

}  // namespace internal
}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_SIZES_H_
