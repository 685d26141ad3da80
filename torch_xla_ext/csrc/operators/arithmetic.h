// Division and bounds.
#ifndef TORCH_XLA_EXT_CSRC_OPERATORS_ARITHMETIC_H_
#define TORCH_XLA_EXT_CSRC_OPERATORS_ARITHMETIC_H_

#include <optional>
#include <string_view>

#include "torch_xla_ext/csrc/operators/stock.h"

namespace torch_xla_ext::operators {

// An operand of FloorDivided, which may be a number on the CPU.
inline at::Tensor OperandOnDevice(const at::Tensor& tensor,
                                  const at::TensorOptions& options) {
  return tensor.device().is_cpu() ? at::full({}, tensor.item(), options)
                                  : tensor.to(options.dtype());
}

// The stock kernel rounds the rounded quotient: 3.0 // 0.3 is 10 there, but 9
// in PyTorch. This is c10::div_floor_floating, in which the remainder is exact.
inline at::Tensor FloorDivided(const at::Tensor& self,
                               const at::Tensor& other) {
  const at::ScalarType dtype = at::result_type(self, other);
  const at::TensorOptions options =
      (self.device().is_cpu() ? other : self)
          .options()
          .dtype(at::isReducedFloatingType(dtype) ? at::kFloat : dtype);
  const at::Tensor a = OperandOnDevice(self, options);
  const at::Tensor b = OperandOnDevice(other, options);
  const at::Tensor rest = at::fmod(a, b), ratio = at::div(a, b);
  const at::Tensor is_above =
      at::logical_and(at::ne(rest, 0), at::ne(at::lt(b, 0), at::lt(rest, 0)));
  const at::Tensor quotient =
      at::sub(at::div(at::sub(a, rest), b), is_above.to(a.scalar_type()));
  const at::Tensor floor = at::floor(quotient);
  const at::Tensor whole =
      at::add(floor, at::gt(at::sub(quotient, floor), 0.5).to(a.scalar_type()));
  const at::Tensor zero =
      at::mul(at::sign(ratio), 0);  // its sign is the ratio's
  return at::where(at::eq(b, 0), ratio,
                   at::where(at::eq(quotient, 0), zero, whole))
      .to(dtype);
}

// The stock kernel drops the imaginary parts of a quotient.
inline at::Tensor DivTensorMode(const at::Tensor& self, const at::Tensor& other,
                                std::optional<std::string_view> rounding_mode) {
  if (self.is_complex() || other.is_complex()) {
    return OnCpu<at::_ops::div_Tensor_mode>(self, other, rounding_mode);
  }
  if (rounding_mode == "floor" &&
      at::isFloatingType(at::result_type(self, other))) {
    return FloorDivided(self, other);
  }
  return Stock::div(self, other, rounding_mode);
}

inline at::Tensor DivTensor(const at::Tensor& self, const at::Tensor& other) {
  return DivTensorMode(self, other, std::nullopt);
}

inline at::Tensor FloorDivide(const at::Tensor& self, const at::Tensor& other) {
  return DivTensorMode(self, other, "floor");
}

// The stock kernels also bound by the largest finite number.
inline at::Tensor Clamp(const at::Tensor& self,
                        const std::optional<at::Scalar>& min,
                        const std::optional<at::Scalar>& max) {
  at::Tensor result = self;
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
  return Clamp(self, min, std::nullopt);
}

inline at::Tensor ClampMax(const at::Tensor& self, const at::Scalar& max) {
  return Clamp(self, std::nullopt, max);
}

inline at::Tensor IsNan(const at::Tensor& self) {
  if (!self.is_complex()) return Stock::isnan(self);
  const at::Tensor parts = at::view_as_real_copy(self);
  return at::any(at::isnan(parts), -1);
}

// The stock kernels refuse bounds of a higher rank.
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

}  // namespace torch_xla_ext::operators

#endif  // TORCH_XLA_EXT_CSRC_OPERATORS_ARITHMETIC_H_
