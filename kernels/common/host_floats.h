// Floating-point arrays on the Host: kernels compute in float, whatever the
// dtype.
#ifndef KERNELS_COMMON_HOST_FLOATS_H_
#define KERNELS_COMMON_HOST_FLOATS_H_

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "torch_xla_ext/dtype.h"

namespace torch_xla_ext {

// Calls visit(T()) with the C++ type T of a floating-point dtype. The
// signatures allow no other dtypes.
template <typename Visitor>
void VisitFloat(DType dtype, const Visitor& visit) {
  switch (dtype) {
    case F16:
      return visit(c10::Half());
    case BF16:
      return visit(c10::BFloat16());
    case F8E4M3FN:
      return visit(c10::Float8_e4m3fn());
    default:
      return visit(float());
  }
}

template <typename T>
void ToFloats(const T* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(in[i]);
}

// Rounds to nearest even. F8E4M3FN, which has no infinities, saturates; NaN
// stays NaN.
template <typename T>
T FromFloat(float value) {
  return static_cast<T>(value);
}
template <>
inline c10::Float8_e4m3fn FromFloat(float value) {
  constexpr float kMax = 448;
  if (!std::isnan(value)) value = std::min(std::max(value, -kMax), kMax);
  return static_cast<c10::Float8_e4m3fn>(value);
}

}  // namespace torch_xla_ext

#endif  // KERNELS_COMMON_HOST_FLOATS_H_
