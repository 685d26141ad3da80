// The dtypes of operators in place, to which functionalization converts
// silently: C++ functions such as PyTorch's dropout, which multiply integers by
// a fraction in place, got 0.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_IN_PLACE_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_IN_PLACE_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"

namespace torch_xla_ext::aten_overrides {

inline void CheckCast(at::ScalarType result, const at::Tensor& self) {
  TORCH_CHECK(c10::canCast(result, self.scalar_type()), "result type ", result,
              " can't be cast to the desired output type ", self.scalar_type());
}

// The type of a quotient, or of a function of floats.
inline at::ScalarType FloatOf(at::ScalarType type) {
  return at::isIntegralType(type, /*includeBool=*/true)
             ? at::typeMetaToScalarType(at::get_default_dtype())
             : type;
}

inline void CheckProductInPlace(const at::Tensor& self,
                                const at::Scalar& other) {
  CheckCast(at::result_type(self, other), self);
}

inline void CheckQuotientInPlace(const at::Tensor& self,
                                 const at::Scalar& other) {
  CheckCast(FloatOf(at::result_type(self, other)), self);
}

inline void CheckCumulativeInPlace(const char* name, const at::Tensor& self) {
  TORCH_CHECK(self.scalar_type() != at::kBool, name,
              ": not implemented for 'Bool'");
}

inline void RegisterInPlaceChecks(torch::Library& m) {
#define TORCH_XLA_EXT_CHECK(name, function) \
  CheckedCall<at::_ops::name, &function,    \
              c10::DispatchKey::Functionalize>::Register(m);
  TORCH_XLA_EXT_CHECK(cumprod_, CheckCumulativeInPlace)
  TORCH_XLA_EXT_CHECK(cumsum_, CheckCumulativeInPlace)
  TORCH_XLA_EXT_CHECK(div__Scalar, CheckQuotientInPlace)
  TORCH_XLA_EXT_CHECK(mul__Scalar, CheckProductInPlace)
#undef TORCH_XLA_EXT_CHECK
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_IN_PLACE_CHECKS_H_
