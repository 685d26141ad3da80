// What the operators here are built from: the stock kernels, and ways of
// calling them.
#ifndef TORCH_XLA_EXT_CSRC_OPERATORS_STOCK_H_
#define TORCH_XLA_EXT_CSRC_OPERATORS_STOCK_H_

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/native/CPUFallback.h>

#include "torch_xla_ext/csrc/native_functions.h"
#include "torch_xla_ext/csrc/upstream.h"

namespace torch_xla_ext::operators {

// The kernels of torch_xla, by the names of their operators.
using Stock = torch_xla::XLANativeFunctions;

// Runs an operator on the CPU, through the same fallback as operators that
// torch_xla does not implement, so that torch.compile knows of it. `Operator`
// is one of at::_ops.
template <typename Operator, typename... Arguments>
auto OnCpu(const Arguments&... arguments) {
  return at::native::call_fallback_fn<&torch_xla::xla_fallback, Operator>::call(
      arguments...);
}

inline bool IsComplex(const at::Tensor& tensor) { return tensor.is_complex(); }
inline bool IsComplex(const at::Scalar& number) { return number.isComplex(); }
template <typename Other>
bool IsComplex(const Other&) {
  return false;
}

// A kernel that computes wrong numbers for complex operands: with these, the
// operator `Operator` runs on the CPU. `Function` is the kernel's type.
template <typename Operator, typename Function, Function* kKernel>
struct ComplexOnCpu;

template <typename Operator, typename Result, typename... Arguments,
          Result (*kKernel)(Arguments...)>
struct ComplexOnCpu<Operator, Result(Arguments...), kKernel> {
  static Result Call(Arguments... arguments) {
    if ((IsComplex(arguments) || ...)) return OnCpu<Operator>(arguments...);
    return kKernel(arguments...);
  }
};

inline bool Has16Bits(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type());
}

inline bool IsInteger(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

}  // namespace torch_xla_ext::operators

#endif  // TORCH_XLA_EXT_CSRC_OPERATORS_STOCK_H_
