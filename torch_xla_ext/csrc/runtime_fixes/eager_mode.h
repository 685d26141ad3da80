// Controls torch_xla's eager mode, in which each operator runs as one program.
#ifndef TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_EAGER_MODE_H_
#define TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_EAGER_MODE_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <vector>

#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext {

// While one exists, operators that this thread traces stay pending in eager
// mode (interpose/eager_mode.cc).
class DelayedExecution {
 public:
  DelayedExecution();
  ~DelayedExecution();
  DelayedExecution(const DelayedExecution&) = delete;
  DelayedExecution& operator=(const DelayedExecution&) = delete;
  static bool IsOn();
};

// Computes the pending ones of these tensors in one program.
void ExecuteTogether(const std::vector<at::Tensor>& tensors);

inline void AddTensors(const at::Tensor& tensor,
                       std::vector<at::Tensor>* tensors) {
  tensors->push_back(tensor);
}
inline void AddTensors(const std::vector<at::Tensor>& list,
                       std::vector<at::Tensor>* tensors) {
  tensors->insert(tensors->end(), list.begin(), list.end());
}
inline void AddTensors(const std::optional<at::Tensor>& tensor,
                       std::vector<at::Tensor>* tensors) {
  if (tensor) tensors->push_back(*tensor);
}
template <typename... Results>
void AddTensors(const std::tuple<Results...>& results,
                std::vector<at::Tensor>* tensors) {
  std::apply(
      [tensors](const Results&... result) {
        (AddTensors(result, tensors), ...);
      },
      results);
}
template <typename Other>
void AddTensors(const Other&, std::vector<at::Tensor>*) {}

// Calls a kernel that consists of several operators, and may write to its
// arguments. In eager mode the operators run as one program.
template <typename Kernel, typename... Arguments>
auto CallAsOneOperator(const Kernel& kernel, const Arguments&... arguments)
    -> decltype(kernel()) {
  using Result = decltype(kernel());
  if constexpr (std::is_void_v<Result>) {
    kernel();
  } else {
    if (DelayedExecution::IsOn() ||
        !torch_xla::XLAGraphExecutor::Get()->UseEagerMode()) {
      return kernel();
    }
    const auto delayed = [&]() -> Result {
      const DelayedExecution delay;
      return kernel();
    };
    std::vector<at::Tensor> tensors;
    (AddTensors(arguments, &tensors), ...);  // before the kernel moves them
    Result result = delayed();
    AddTensors(result, &tensors);
    ExecuteTogether(tensors);
    return result;
  }
}

}  // namespace torch_xla_ext

#endif  // TORCH_XLA_EXT_CSRC_RUNTIME_FIXES_EAGER_MODE_H_
