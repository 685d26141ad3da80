// Converts to 8-bit floats with PyTorch's rounding.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_FLOAT8_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_FLOAT8_H_

#include <cmath>
#include <limits>

#include "torch_xla_ext/csrc/aten_overrides/hlo.h"

namespace torch_xla_ext::aten_overrides {

// Numbers in [2^e, 2^(e + 1)) are multiples of 2^(e - mantissa_bits), for any e
// from least_exponent on.
struct Float8Format {
  int mantissa_bits;
  int least_exponent;
  double largest;
  // The result of any greater number.
  float beyond;
};

inline const Float8Format* Float8FormatOf(at::ScalarType type) {
  static constexpr Float8Format kE4m3fn{
      3, -6, 448, std::numeric_limits<float>::quiet_NaN()};
  static constexpr Float8Format kE5m2{2, -14, 57344,
                                      std::numeric_limits<float>::infinity()};
  switch (type) {
    case at::kFloat8_e4m3fn:
      return &kE4m3fn;
    case at::kFloat8_e5m2:
      return &kE5m2;
    default:
      return nullptr;
  }
}

// The values of an XLA tensor, rounded in float32 to values of the format, so
// that the conversion to the format is exact.
//
// XLA:CPU's own conversion goes through float16, which rounds some values to a
// neighbor of the nearest one; cuBLASLt's and Hopper's conversions saturate.
inline at::Tensor RoundedToFloat8(const at::Tensor& self,
                                  const Float8Format& format) {
  const at::Tensor x = self.to(at::kFloat);
  const at::Tensor size = at::abs(x);
  const at::Tensor normal =
      Traced(ReducedPrecision{.exponent_bits = 8,
                              .mantissa_bits = format.mantissa_bits},
             {size});
  // Smaller numbers are multiples of one step. A sum with this has no bits
  // below the step, and is rounded to even.
  const double least = std::ldexp(1.0, format.least_exponent);
  const double large =
      std::ldexp(1.5, 23 + format.least_exponent - format.mantissa_bits);
  const at::Tensor subnormal = at::sub(at::add(size, large), large);
  at::Tensor rounded = at::where(at::lt(size, least), subnormal, normal);
  rounded = at::where(at::gt(rounded, format.largest), format.beyond, rounded);
  const at::Tensor with_sign =
      at::where(at::lt(x, 0), at::neg(rounded), rounded);
  return at::where(at::eq(x, 0), x, with_sign);  // keeps -0.0
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_FLOAT8_H_
