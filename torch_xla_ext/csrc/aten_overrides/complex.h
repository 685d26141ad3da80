// Functions that also have complex operands, and the truth of such operands.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPLEX_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPLEX_H_

#include <cmath>
#include <cstdint>

#include "torch_xla_ext/csrc/aten_overrides/arithmetic.h"
#include "torch_xla_ext/csrc/aten_overrides/counting_library.h"
#include "torch_xla_ext/csrc/aten_overrides/precision.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// The upstream kernels take 256 beside uint8 for true, which PyTorch takes for
// 0, and complex numbers for their real parts.
template <auto kUpstream>
at::Tensor OfTruth(const at::Tensor& self, const at::Tensor& other) {
  const at::TensorOptions options = at::TensorOptions()
                                        .device(DeviceOf(self, other))
                                        .dtype(CommonType(self, other));
  const auto operand = [&](const at::Tensor& tensor) {
    const at::Tensor converted = OperandOnDevice(tensor, options);
    return converted.is_complex() ? converted.to(at::kBool) : converted;
  };
  return kUpstream(operand(self), operand(other));
}

inline at::Tensor LogicalNot(const at::Tensor& self) {
  return Upstream::logical_not(self.is_complex() ? self.to(at::kBool) : self);
}

inline at::Tensor AllFalse(const at::Tensor& like) {
  return at::zeros(like.sizes(), like.options().dtype(at::kBool));
}

inline at::Tensor IsNan(const at::Tensor& self) {
  if (IsInteger(self)) return AllFalse(self);
  if (!self.is_complex()) return Upstream::isnan(self);
  const at::Tensor parts = at::view_as_real_copy(self);
  return at::any(at::isnan(parts), -1);
}

// PyTorch's function views the real and imaginary parts, which XLA tensors do
// not support.
inline at::Tensor IsInf(const at::Tensor& self) {
  if (IsInteger(self)) return AllFalse(self);
  if (!self.is_complex()) return at::eq(at::abs(self), INFINITY);
  return at::any(IsInf(at::view_as_real_copy(self)), -1);
}

// The upstream kernel replaces True by -inf.
inline at::Tensor IsNegInf(const at::Tensor& self) {
  return IsInteger(self) ? AllFalse(self) : Upstream::isneginf(self);
}

// The upstream kernels divide by a logarithm in float32, or by a complex one,
// which is NaN for 0.
template <int kBase, at::Tensor (*kUpstream)(const at::Tensor&)>
at::Tensor Logarithm(const at::Tensor& self) {
  const double factor = 1 / std::log(static_cast<double>(kBase));
  if (self.is_complex()) {
    return at::view_as_complex_copy(
        at::mul(at::view_as_real_copy(at::log(self)), factor));
  }
  if (self.scalar_type() != at::kDouble) return kUpstream(self);
  return at::mul(at::log(self), factor);
}

// The parts of a complex number.
enum Part : int64_t { kReal, kImaginary };

inline at::Tensor PartOf(const at::Tensor& self, Part part) {
  return at::select_copy(at::view_as_real_copy(self), /*dim=*/-1, part);
}

// `kUpstream`, which multiplies infinities by the sine of the operand's part
// `kAngle`: its result's part `kPart` is NaN for the angle 0, not 0.
template <at::Tensor (*kUpstream)(const at::Tensor&), Part kAngle, Part kPart>
at::Tensor WithSine(const at::Tensor& self) {
  const at::Tensor result = OfFloat<kUpstream>(self);
  if (!self.is_complex()) return result;
  const at::Tensor angle = PartOf(self, kAngle), part = PartOf(result, kPart);
  const at::Tensor is_zero = at::logical_and(at::eq(angle, 0), at::isnan(part));
  const at::Tensor right = at::where(is_zero, angle, part);
  return kPart == kReal ? at::complex(right, PartOf(result, kImaginary))
                        : at::complex(PartOf(result, kReal), right);
}

// The inverse functions, of which the upstream kernels compute another branch
// or NaN, and the powers run on the CPU for complex operands.
inline void RegisterComplex(CountingLibrary& m) {
#define TORCH_XLA_EXT_INVERSE(name)                           \
  m.impl(#name, kFloat32<&ComplexOnCpu<at::_ops::name, OfOne, \
                                       &OfFloat<&Upstream::name>>::Call>);
  TORCH_XLA_EXT_INVERSE(acos)
  TORCH_XLA_EXT_INVERSE(acosh)
  TORCH_XLA_EXT_INVERSE(asin)
  TORCH_XLA_EXT_INVERSE(asinh)
  TORCH_XLA_EXT_INVERSE(atan)
  TORCH_XLA_EXT_INVERSE(atanh)
  TORCH_XLA_EXT_INVERSE(log1p)
#undef TORCH_XLA_EXT_INVERSE
  m.impl("cos", WithSine<&Upstream::cos, kReal, kImaginary>);
  m.impl("cosh", WithSine<&Upstream::cosh, kImaginary, kImaginary>);
  m.impl("exp", WithSine<&Upstream::exp, kImaginary, kImaginary>);
  m.impl("isinf", IsInf);
  m.impl("isnan", IsNan);
  m.impl("isneginf", IsNegInf);
  m.impl("log10", kFloat32<&OfFloat<&Logarithm<10, &Upstream::log10>>>);
  m.impl("log2", kFloat32<&OfFloat<&Logarithm<2, &Upstream::log2>>>);
  m.impl("logical_and", OfTruth<&Upstream::logical_and>);
  m.impl("logical_not", LogicalNot);
  m.impl("logical_or", OfTruth<&Upstream::logical_or>);
  m.impl("logical_xor", OfTruth<&Upstream::logical_xor>);
  m.impl("pow.Scalar",
         ComplexOnCpu<at::_ops::pow_Scalar, OfNumberAnd, &PowOfScalar>::Call);
  m.impl("pow.Tensor_Scalar", PowByNumber);
  m.impl("pow.Tensor_Tensor",
         ComplexOnCpu<at::_ops::pow_Tensor_Tensor, OfTwo, &PowTensor>::Call);
  m.impl("sin", WithSine<&Upstream::sin, kReal, kReal>);
  m.impl("sinh", WithSine<&Upstream::sinh, kImaginary, kImaginary>);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_COMPLEX_H_
