// Quotients and remainders.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_DIVISION_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_DIVISION_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/arithmetic.h"
#include "torch_xla_ext/csrc/aten_overrides/hlo.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// Whether the signs of a remainder and its divisor differ: then the quotient
// rounded down is one less than the quotient rounded towards zero.
inline at::Tensor HasOtherSign(const at::Tensor& rest,
                               const at::Tensor& divisor) {
  return at::logical_and(at::ne(rest, 0),
                         at::ne(at::lt(divisor, 0), at::lt(rest, 0)));
}

// The upstream kernel floors the rounded quotient: in float32, 3.0 // 0.3 is 10
// there, but 9 in PyTorch. This is c10::div_floor_floating, which uses the
// exact remainder.
inline at::Tensor FloorDivided(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor rest = at::fmod(a, b), ratio = at::div(a, b);
  const at::Tensor quotient = at::sub(
      at::div(at::sub(a, rest), b), HasOtherSign(rest, b).to(a.scalar_type()));
  const at::Tensor floor = at::floor(quotient);
  const at::Tensor whole =
      at::add(floor, at::gt(at::sub(quotient, floor), 0.5).to(a.scalar_type()));
  const at::Tensor zero =
      at::mul(at::sign(ratio), 0);  // zero with the ratio's sign
  return at::where(at::eq(b, 0), ratio,
                   at::where(at::eq(quotient, 0), zero, whole));
}

// Refuses 0 as the divisor of integers, as PyTorch's CPU does, if it is a
// number: for a divisor on the device, the program would have to be waited for.
inline void CheckDivisor(const at::Tensor& divisor, at::ScalarType dtype) {
  if (!divisor.is_cpu() || divisor.dim() > 0 ||
      !at::isIntegralType(dtype, /*includeBool=*/false)) {
    return;
  }
  TORCH_CHECK(divisor.to(dtype).item<int64_t>() != 0,
              "ZeroDivisionError: ", divisor.item(),
              " is 0 in the dtype of the quotient, ", dtype);
}

inline constexpr auto kUpstreamFmod =
    static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&)>(
        &Upstream::fmod);

inline at::Tensor FmodTensor(const at::Tensor& self, const at::Tensor& other) {
  CheckDivisor(other, at::result_type(self, other));
  return Matched<OfTwo, kUpstreamFmod>::Call(self, other);
}

inline at::Tensor FmodByNumber(const at::Tensor& self,
                               const at::Scalar& other) {
  return FmodTensor(self, at::native::wrapped_scalar_tensor(other));
}

// Division of integers, rounded down or towards zero. The upstream kernel
// divides in float32: 100,000,001 // 1 is 100,000,000 there.
inline at::Tensor QuotientOfIntegers(const at::Tensor& self,
                                     const at::Tensor& other, bool is_floor) {
  const std::vector<int64_t> shape =
      at::infer_size(self.sizes(), other.sizes());
  const at::Tensor a = at::expand_copy(self, shape);
  const at::Tensor b = at::expand_copy(other, shape);
  const at::Tensor quotient = Traced(Quotient{}, {a, b});
  if (!is_floor) return quotient;
  const at::Tensor rest = at::sub(a, at::mul(quotient, b));
  return at::sub(quotient, HasOtherSign(rest, b).to(quotient.scalar_type()));
}

using DividedWithMode = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   std::optional<std::string_view>);

// The upstream kernel drops the imaginary parts of a quotient, and rounds a
// divisor that is a number to 16 bits, or takes 300 for 44 beside uint8.
inline at::Tensor DivTensorMode(const at::Tensor& self, const at::Tensor& other,
                                std::optional<std::string_view> rounding_mode) {
  TORCH_CHECK(!rounding_mode.has_value() || rounding_mode == "trunc" ||
                  rounding_mode == "floor",
              "div expected rounding_mode to be one of None, 'trunc', or "
              "'floor' but found '",
              *rounding_mode, "'");
  TORCH_CHECK(
      !rounding_mode.has_value() || at::result_type(self, other) != at::kBool,
      "div: rounding is not implemented for 'Bool'");
  const at::Device device = DeviceOf(self, other);
  const at::Tensor a = OnDevice(self, device), b = OnDevice(other, device);
  if (!a.is_same(self) || !b.is_same(other)) {
    return DivTensorMode(a, b, rounding_mode);
  }
  if (self.is_complex() || other.is_complex()) {
    return OnCpu<at::_ops::div_Tensor_mode>(self, other, rounding_mode);
  }
  const at::ScalarType dtype = at::result_type(self, other);
  const at::TensorOptions options =
      at::TensorOptions().device(device).dtype(dtype);
  const bool is_by_number = other.dim() == 0 && other.scalar_type() != dtype;
  if (at::isReducedFloatingType(dtype) &&
      (is_by_number || rounding_mode == "floor")) {
    const at::TensorOptions wide = options.dtype(at::kFloat);
    return DivTensorMode(
               OperandOnDevice(self, options).to(at::kFloat),
               OperandOnDevice(is_by_number ? other : other.to(dtype), wide),
               rounding_mode)
        .to(dtype);
  }
  if (rounding_mode == "floor" && at::isFloatingType(dtype)) {
    return FloorDivided(OperandOnDevice(self, options),
                        OperandOnDevice(other, options));
  }
  if (rounding_mode.has_value() &&
      at::isIntegralType(dtype, /*includeBool=*/false)) {
    CheckDivisor(other, dtype);
    return QuotientOfIntegers(OperandOnDevice(self, options),
                              OperandOnDevice(other, options),
                              rounding_mode == "floor");
  }
  if (!rounding_mode.has_value() &&
      at::isIntegralType(dtype, /*includeBool=*/true)) {
    return Upstream::div(AsFloat(self), AsFloat(other), rounding_mode);
  }
  return Matched<DividedWithMode, &Upstream::div>::Call(self, other,
                                                        rounding_mode);
}

inline at::Tensor DivTensor(const at::Tensor& self, const at::Tensor& other) {
  return DivTensorMode(self, other, std::nullopt);
}

inline at::Tensor FloorDivide(const at::Tensor& self, const at::Tensor& other) {
  return DivTensorMode(self, other, "floor");
}

inline constexpr auto kUpstreamRemainder =
    static_cast<at::Tensor (*)(const at::Tensor&, const at::Tensor&)>(
        &Upstream::remainder);

// The upstream kernel multiplies by the divisor, which is NaN for infinite
// ones.
inline at::Tensor RemainderTensor(const at::Tensor& self,
                                  const at::Tensor& other) {
  const at::ScalarType dtype = CommonType(self, other);
  TORCH_CHECK(dtype != at::kBool && !at::isComplexType(dtype),
              "remainder: not implemented for '", dtype, "'");
  if (!at::isFloatingType(dtype)) {
    CheckDivisor(other, dtype);
    return OfCommonType<kUpstreamRemainder>(self, other);
  }
  const at::Tensor divisor = OperandOnDevice(
      other, (self.device().is_cpu() ? other : self).options().dtype(dtype));
  const at::Tensor rest = at::fmod(self, divisor);
  return at::where(HasOtherSign(rest, divisor), at::add(rest, divisor), rest);
}

inline at::Tensor RemainderScalar(const at::Tensor& self,
                                  const at::Scalar& other) {
  return RemainderTensor(self, at::native::wrapped_scalar_tensor(other));
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_DIVISION_H_
