// Sums, products, powers, bounds and interpolation between two numbers.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_ARITHMETIC_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_ARITHMETIC_H_

#include <ATen/native/TypeProperties.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "torch_xla_ext/csrc/aten_overrides/precision.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// An operand, which may be a number on the CPU. As in PyTorch, 300 is 44 as
// uint8.
inline at::Tensor OperandOnDevice(const at::Tensor& tensor,
                                  const at::TensorOptions& options) {
  if (!tensor.is_cpu() || tensor.dim() > 0) {
    return OnDevice(tensor, options.device()).to(options.dtype());
  }
  return at::full({}, tensor.to(options.dtype()).item(), options);
}

// The dtype in which PyTorch computes with both operands.
inline at::ScalarType CommonType(const at::Tensor& self,
                                 const at::Tensor& other) {
  const at::ScalarType dtype = at::result_type(self, other);
  TORCH_CHECK(dtype != at::kComplexHalf, "of ",
              c10::toString(self.scalar_type()), " and ",
              c10::toString(other.scalar_type()),
              " PyTorch makes complex numbers of 16-bit floats, which XLA does "
              "not have: convert one of them to torch.complex64");
  return dtype;
}

// PyTorch converts both operands to a common type. The results of these
// upstream kernels have the type of one operand, or XLA refuses them.
template <auto kUpstream>
at::Tensor OfCommonType(const at::Tensor& self, const at::Tensor& other) {
  const at::TensorOptions options = (self.device().is_cpu() ? other : self)
                                        .options()
                                        .dtype(CommonType(self, other));
  return kUpstream(OperandOnDevice(self, options),
                   OperandOnDevice(other, options));
}

// The upstream kernels of << and >> multiply by powers of two and divide by
// them, which rounds -7 >> 1 up.
template <auto kUpstream>
at::Tensor ShiftedByNumber(const at::Tensor& self, const at::Scalar& other) {
  return OfCommonType<kUpstream>(self,
                                 at::native::wrapped_scalar_tensor(other));
}

inline at::Tensor Where(const at::Tensor& condition, const at::Tensor& self,
                        const at::Tensor& other) {
  const at::Device device =
      condition.is_cpu() ? DeviceOf(self, other) : condition.device();
  const at::TensorOptions options =
      at::TensorOptions().device(device).dtype(CommonType(self, other));
  return Upstream::where(OnDevice(condition, device),
                         OperandOnDevice(self, options),
                         OperandOnDevice(other, options));
}

using OfTwoAndFactor = at::Tensor(const at::Tensor&, const at::Tensor&,
                                  const at::Scalar&);

// Sums and differences. For 16-bit operands, the upstream kernels also round
// the product with the factor.
template <OfTwoAndFactor* kUpstream>
at::Tensor WithFactor(const at::Tensor& self, const at::Tensor& other,
                      const at::Scalar& factor) {
  constexpr auto kMatched = &Matched<OfTwoAndFactor, kUpstream>::Call;
  return factor.equal(1) ? kMatched(self, other, factor)
                         : kFloat32<kMatched>(self, other, factor);
}

// The upstream kernel multiplies by a number in float32, as PyTorch does.
inline at::Tensor MulTensor(const at::Tensor& self, const at::Tensor& other) {
  const at::Device device = DeviceOf(self, other);
  return Upstream::mul(OnDevice(self, device), OnDevice(other, device));
}

// The upstream kernels of operators with a number refuse one that the dtype
// does not have.
template <OfTwoAndFactor* kUpstream>
at::Tensor NumberWithFactor(const at::Tensor& self, const at::Scalar& other,
                            const at::Scalar& factor) {
  return WithFactor<kUpstream>(self, at::native::wrapped_scalar_tensor(other),
                               factor);
}

inline at::Tensor MulByNumber(const at::Tensor& self, const at::Scalar& other) {
  return MulTensor(self, at::native::wrapped_scalar_tensor(other));
}

// The upstream kernels of addcmul and addcdiv compute the product or the
// quotient in the dtype of its operands: half of an integer is 0.
template <auto kUpstream>
at::Tensor Promoted(const at::Tensor& self, const at::Tensor& tensor1,
                    const at::Tensor& tensor2, const at::Scalar& value) {
  TORCH_CHECK(
      kUpstream != &Upstream::addcdiv ||
          !(IsInteger(tensor1) && IsInteger(tensor2)),
      "addcdiv: integers are not divided; convert tensor1 or tensor2, of "
      "dtype ",
      tensor1.scalar_type(), " and ", tensor2.scalar_type(),
      ", to a floating-point dtype");
  const at::Tensor operands[] = {self, tensor1, tensor2};
  const at::ScalarType dtype = at::native::result_type(operands);
  return kUpstream(self.to(dtype), tensor1.to(dtype), tensor2.to(dtype), value);
}

inline at::Tensor RsubTensor(const at::Tensor& self, const at::Tensor& other,
                             const at::Scalar& alpha) {
  return at::sub(other, self, alpha);
}

inline at::Tensor RsubOfNumber(const at::Tensor& self, const at::Scalar& other,
                               const at::Scalar& alpha) {
  return RsubTensor(self, at::native::wrapped_scalar_tensor(other), alpha);
}

// `base` to the power of `exponent`, which are of one type of integers. XLA
// computes with an exponent's last six bits.
inline at::Tensor PowerOfIntegers(const at::Tensor& base,
                                  const at::Tensor& exponent) {
  constexpr int kDigit = 6;
  const at::ScalarType type = base.scalar_type();
  const int num_bits = static_cast<int>(8 * base.element_size());
  at::Tensor factor = base, rest = exponent.to(at::kLong), power;
  for (int bit = 0; bit < num_bits; bit += kDigit) {
    const at::Tensor digit = at::bitwise_and(rest, (1 << kDigit) - 1).to(type);
    const at::Tensor part = Upstream::pow(factor, digit);
    power = bit == 0 ? part : at::mul(power, part);
    for (int i = 0; i < kDigit; ++i) factor = at::mul(factor, factor);
    rest = at::bitwise_right_shift(rest, kDigit);
  }
  return power;
}

// In the upstream kernels, a negative power of an integer is 0, even of 1 and
// -1.
inline at::Tensor PowTensor(const at::Tensor& base, const at::Tensor& times) {
  CommonType(base, times);  // the upstream kernel crashes
  at::Tensor power = Matched<at::Tensor(const at::Tensor&, const at::Tensor&),
                             &Upstream::pow>::Call(base, times);
  if (!at::isIntegralType(power.scalar_type(), /*includeBool=*/false)) {
    return power;
  }
  const at::Tensor self = OperandOnDevice(base, power.options());
  const at::Tensor exponent = OperandOnDevice(times, power.options());
  const bool is_short =
      times.is_cpu() && times.dim() == 0 && times.item<int64_t>() < 64;
  if (!is_short) {
    power = PowerOfIntegers(self, exponent);
  }
  const at::Tensor is_odd = at::ne(at::remainder(exponent, 2), 0);
  const at::Tensor is_negative = at::logical_or(
      at::eq(self, 1),
      at::logical_and(at::eq(self, -1), at::logical_not(is_odd)));
  const at::Tensor of_unit = at::sub(
      is_negative.to(power.scalar_type()),
      at::logical_and(at::eq(self, -1), is_odd).to(power.scalar_type()));
  return at::where(at::lt(exponent, 0), of_unit, power);
}

inline at::Tensor PowOfScalar(const at::Scalar& self,
                              const at::Tensor& exponent) {
  if (!self.isIntegral(/*includeBool=*/false) || !IsInteger(exponent)) {
    return Upstream::pow(self, exponent);
  }
  return PowTensor(OperandOnDevice(at::native::wrapped_scalar_tensor(self),
                                   exponent.options().dtype(
                                       at::result_type(self, exponent))),
                   exponent);
}

// Roots as PyTorch computes them: NaN for -inf, and -0.0 for -0.0. The upstream
// kernel refuses complex exponents, and booleans.
inline at::Tensor PowByNumber(const at::Tensor& self,
                              const at::Scalar& exponent) {
  if (exponent.isComplex()) {
    return OnCpu<at::_ops::pow_Tensor_Scalar>(self, exponent);
  }
  if (exponent.isBoolean() && self.scalar_type() == at::kBool) {
    return exponent.toBool() ? self : at::ones_like(self);
  }
  if (!exponent.isFloatingPoint() || self.is_complex()) {
    const bool is_long = exponent.isIntegral(/*includeBool=*/false) &&
                         exponent.toLong() > 63 && IsInteger(self);
    return is_long ? PowTensor(self, at::scalar_tensor(exponent, at::kLong))
                   : Upstream::pow(self, exponent);
  }
  if (exponent.toDouble() == 0.5) return at::sqrt(self);
  if (exponent.toDouble() == -0.5) return at::rsqrt(self);
  return Upstream::pow(self, exponent);
}

// The upstream kernels subtract infinities from each other; PyTorch does not.
inline at::Tensor Interpolated(const at::Tensor& self, const at::Tensor& end,
                               const at::Tensor& weight) {
  const at::Tensor distance = at::sub(end, self);
  return at::where(at::lt(at::abs(weight), 0.5),
                   at::add(self, at::mul(weight, distance)),
                   at::sub(end, at::mul(distance, at::rsub(weight, 1))));
}

inline at::Tensor InterpolatedByNumber(const at::Tensor& self,
                                       const at::Tensor& end,
                                       const at::Scalar& weight) {
  const at::Tensor distance = at::sub(end, self);
  const double part = weight.toDouble();
  return std::abs(part) < 0.5 ? at::add(self, at::mul(distance, part))
                              : at::sub(end, at::mul(distance, 1 - part));
}

inline at::Tensor LerpTensor(const at::Tensor& self, const at::Tensor& end,
                             const at::Tensor& weight) {
  TORCH_CHECK(self.scalar_type() == end.scalar_type(), "expected dtype ",
              self.dtype(), " for `end` but got dtype ", end.dtype());
  TORCH_CHECK(self.scalar_type() == weight.scalar_type(), "expected dtype ",
              self.dtype(), " for `weight` but got dtype ", weight.dtype());
  return kFloat32<&Interpolated>(self, end,
                                 OperandOnDevice(weight, self.options()));
}

inline at::Tensor LerpScalar(const at::Tensor& self, const at::Tensor& end,
                             const at::Scalar& weight) {
  TORCH_CHECK(self.scalar_type() == end.scalar_type(), "expected dtype ",
              self.dtype(), " for `end` but got dtype ", end.dtype());
  if (weight.isComplex()) {
    return Interpolated(self, end, at::scalar_tensor(weight, self.options()));
  }
  return kFloat32<&InterpolatedByNumber>(self, end, weight);
}

inline bool IsNanNumber(const at::Scalar& number) {
  return number.isFloatingPoint() && std::isnan(number.toDouble());
}

inline at::Tensor NansLike(const at::Tensor& self, const at::Scalar& nan) {
  return at::full_like(self, nan,
                       self.options().dtype(at::result_type(self, nan)));
}

// The upstream kernels also clamp to the largest finite number. As in PyTorch,
// all results are NaN if one of two bounds is.
inline at::Tensor Clamp(const at::Tensor& self,
                        const std::optional<at::Scalar>& min,
                        const std::optional<at::Scalar>& max) {
  at::Tensor result = self;
  if (min.has_value() && max.has_value()) {
    if (IsNanNumber(*min)) return NansLike(self, *min);
    if (IsNanNumber(*max)) return NansLike(self, *max);
  }
  if (min.has_value()) {
    result = result.to(at::result_type(result, *min));
    result =
        at::where(at::lt(result, *min), at::full_like(result, *min), result);
  }
  if (max.has_value()) {
    result = result.to(at::result_type(result, *max));
    result =
        at::where(at::gt(result, *max), at::full_like(result, *max), result);
  }
  return result;
}

inline at::Tensor ClampMin(const at::Tensor& self, const at::Scalar& min) {
  if (IsNanNumber(min)) return NansLike(self, min);
  return Clamp(self, min, std::nullopt);
}

inline at::Tensor ClampMax(const at::Tensor& self, const at::Scalar& max) {
  if (IsNanNumber(max)) return NansLike(self, max);
  return Clamp(self, std::nullopt, max);
}

// A function of floats. The upstream kernels refuse booleans, and some refuse
// integers.
template <at::Tensor (*kUpstream)(const at::Tensor&)>
at::Tensor OfFloat(const at::Tensor& self) {
  return kUpstream(IsInteger(self) ? AsFloat(self) : self);
}

template <auto kUpstream>
at::Tensor OfCommonFloat(const at::Tensor& self, const at::Tensor& other) {
  return OfCommonType<kUpstream>(
      IsInteger(self) && IsInteger(other) ? AsFloat(self) : self, other);
}

// The upstream kernel uses float32's largest number for bfloat16, in which it
// becomes infinite, and refuses replacements that the dtype does not hold, such
// as infinity.
inline at::Tensor NanToNum(const at::Tensor& self, std::optional<double> nan,
                           std::optional<double> posinf,
                           std::optional<double> neginf) {
  const at::ScalarType type = self.scalar_type();
  if (!at::isFloatingType(type)) {
    return Upstream::nan_to_num(self, nan, posinf, neginf);
  }
  double largest = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, type, "nan_to_num", [&] {
        largest = static_cast<double>(std::numeric_limits<scalar_t>::max());
      });
  at::Tensor result = Upstream::nan_to_num(self, 0, largest, -largest);
  const auto replace = [&](const at::Tensor& where, double value) {
    if (std::abs(value) > largest) value = std::copysign(INFINITY, value);
    result = at::where(where, at::full({}, value, self.options()), result);
  };
  if (nan) replace(at::isnan(self), *nan);
  if (posinf) replace(at::eq(self, INFINITY), *posinf);
  if (neginf) replace(at::eq(self, -INFINITY), *neginf);
  return result;
}

// The upstream kernels refuse bounds of a higher rank.
inline at::Tensor ClampTensor(const at::Tensor& self,
                              const std::optional<at::Tensor>& min,
                              const std::optional<at::Tensor>& max) {
  at::Tensor result = self;
  if (min.has_value()) result = at::maximum(result, *min);
  if (max.has_value()) result = at::minimum(result, *max);
  return result;
}

inline at::Tensor ClampMinTensor(const at::Tensor& self,
                                 const at::Tensor& min) {
  return at::maximum(self, min);
}

inline at::Tensor ClampMaxTensor(const at::Tensor& self,
                                 const at::Tensor& max) {
  return at::minimum(self, max);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_ARITHMETIC_H_
