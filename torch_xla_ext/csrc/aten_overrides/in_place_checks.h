// Checks of in-place operators, such as `x.lerp_(gradient, 0.1)`, before they
// are functionalized: of shapes and dtypes, as PyTorch makes them, and of
// results to which functionalization would convert silently. C++ functions such
// as PyTorch's dropout, which multiply integers by a fraction in place, got 0.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_IN_PLACE_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_IN_PLACE_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include <optional>
#include <string>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"
#include "torch_xla_ext/csrc/aten_overrides/size_checks.h"

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

inline void CheckResize(const at::Tensor&, c10::SymIntArrayRef sizes) {
  CheckSizes(sizes);
}

inline void RegisterInPlaceChecks(torch::Library& m) {
#define TORCH_XLA_EXT_CHECK(name, function) \
  CheckedCall<at::_ops::name, &function,    \
              c10::DispatchKey::Functionalize>::Register(m);
  TORCH_XLA_EXT_CHECK(cumprod_, CheckCumulativeInPlace)
  TORCH_XLA_EXT_CHECK(cumsum_, CheckCumulativeInPlace)
  TORCH_XLA_EXT_CHECK(div__Scalar, CheckQuotientInPlace)
  TORCH_XLA_EXT_CHECK(mul__Scalar, CheckProductInPlace)
  TORCH_XLA_EXT_CHECK(resize_, CheckResize)
#undef TORCH_XLA_EXT_CHECK
}

inline bool HasSymbolicSizes(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

inline bool HasSymbolicSizes(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && HasSymbolicSizes(*tensor);
}

template <typename Other>
bool HasSymbolicSizes(const Other&) {
  return false;  // a number
}

// The kernel for meta tensors of `InPlace`, such as at::_ops::lerp__Scalar,
// whose functional form is `Functional`. `kCheck` is PyTorch's function in C++.
// PyTorch registers Python functions instead, which take 50 to 650
// microseconds; a step of Adam calls three for each parameter. The C++
// functions cannot compare symbolic sizes; for these, `Functional` infers the
// result.
template <typename InPlace, typename Functional,
          typename InPlace::schema* kCheck,
          typename Schema = typename InPlace::schema>
struct ShapeCheck;

template <typename InPlace, typename Functional,
          typename InPlace::schema* kCheck, typename... Args>
struct ShapeCheck<InPlace, Functional, kCheck,
                  at::Tensor&(at::Tensor&, Args...)> {
  static at::Tensor& Call(at::Tensor& self, Args... args) {
    if (!HasSymbolicSizes(self) && !(HasSymbolicSizes(args) || ...)) {
      return kCheck(self, args...);
    }
    const at::Tensor result = Functional::call(self, args...);
    TORCH_CHECK(result.sym_sizes() == self.sym_sizes(), "output with shape ",
                self.sym_sizes(), " doesn't match the broadcast shape ",
                result.sym_sizes());
    CheckCast(result.scalar_type(), self);
    return self;
  }

  static void Register(torch::Library& m) {
    const c10::OperatorName name(InPlace::name, InPlace::overload_name);
    m.impl(c10::toString(name).c_str(), Call);
  }
};

// In-place random numbers. PyTorch's Python functions refuse a generator.
inline at::Tensor& CheckRandom(const char* name, at::Tensor& self,
                               bool is_right, const char* parameter,
                               const char* bounds, double value) {
  TORCH_CHECK(self.is_floating_point() || std::string(name) == "geometric_",
              name, " expects a floating point dtype, but got ",
              self.scalar_type());
  TORCH_CHECK(is_right, name, " expects ", parameter, bounds, ", but found ",
              parameter, "=", value);
  return self;
}

using RandomGenerator = std::optional<at::Generator>;

inline at::Tensor& CheckExponential(at::Tensor& self, double lambd,
                                    RandomGenerator) {
  return CheckRandom("exponential_", self, lambd > 0, "lambda", " > 0.0",
                     lambd);
}

inline at::Tensor& CheckCauchy(at::Tensor& self, double, double sigma,
                               RandomGenerator) {
  return CheckRandom("cauchy_", self, sigma > 0, "sigma", " > 0.0", sigma);
}

inline at::Tensor& CheckGeometric(at::Tensor& self, double p, RandomGenerator) {
  return CheckRandom("geometric_", self, 0 < p && p < 1, "p", " in (0, 1)", p);
}

inline at::Tensor& CheckLogNormal(at::Tensor& self, double, double std,
                                  RandomGenerator) {
  return CheckRandom("log_normal_", self, std > 0, "std", " > 0.0", std);
}

inline at::Tensor& CheckLogit(at::Tensor& self, std::optional<double>) {
  TORCH_CHECK(self.is_floating_point() || self.is_complex(),
              "result type Float can't be cast to the desired output type ",
              self.scalar_type());
  return self;
}

inline at::Tensor& CheckFloorDivide(at::Tensor& self, const at::Tensor& other) {
  return at::meta::div_(self, other, "floor");
}

inline at::Tensor& CheckAddr(at::Tensor& self, const at::Tensor& a,
                             const at::Tensor& b, const at::Scalar&,
                             const at::Scalar&) {
  TORCH_CHECK(self.dim() == 2 && a.dim() == 1 && b.dim() == 1 &&
                  self.sym_size(0) == a.sym_size(0) &&
                  self.sym_size(1) == b.sym_size(0),
              "size mismatch, input: ", self.sym_sizes(),
              ", v1: ", a.sym_sizes(), ", v2: ", b.sym_sizes());
  TORCH_CHECK(c10::canCast(at::promote_types(a.scalar_type(), b.scalar_type()),
                           self.scalar_type()),
              "addr_: the result can't be cast to the desired output type ",
              self.scalar_type());
  return self;
}

inline at::Tensor& CheckMaskedScatter(at::Tensor& self, const at::Tensor& mask,
                                      const at::Tensor& source) {
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes "
              "but got ",
              self.scalar_type(), " and ", source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_scatter_ only supports boolean masks, but got mask with "
              "dtype ",
              mask.scalar_type());
  mask.expand_symint(self.sym_sizes());
  return self;
}

// In-place operators with a structured kernel in PyTorch, by their overloads.
// clang-format off
#define TORCH_XLA_EXT_IN_PLACE(CHECK)                                          \
  CHECK(acos) CHECK(acosh) CHECK(asin) CHECK(asinh) CHECK(atan) CHECK(atanh)   \
  CHECK(ceil) CHECK(cos) CHECK(cosh) CHECK(digamma) CHECK(erf) CHECK(erfc)     \
  CHECK(erfinv) CHECK(exp) CHECK(exp2) CHECK(expm1) CHECK(floor) CHECK(frac)   \
  CHECK(lgamma) CHECK(log) CHECK(log10) CHECK(log1p) CHECK(log2) CHECK(neg)    \
  CHECK(reciprocal) CHECK(round) CHECK(rsqrt) CHECK(sgn) CHECK(sigmoid)        \
  CHECK(sign) CHECK(silu) CHECK(sin) CHECK(sinc) CHECK(sinh) CHECK(sqrt)       \
  CHECK(tan) CHECK(tanh) CHECK(trunc) CHECK(addcdiv) CHECK(addcmul)            \
  CHECK(addmm) CHECK(addmv) CHECK(atan2) CHECK(baddbmm) CHECK(clamp)           \
  CHECK(clamp_max) CHECK(clamp_min) CHECK(elu) CHECK(gcd) CHECK(gelu)          \
  CHECK(heaviside) CHECK(hypot) CHECK(igamma) CHECK(igammac) CHECK(lcm)        \
  CHECK(leaky_relu) CHECK(nextafter)
#define TORCH_XLA_EXT_IN_PLACE_WITH_NUMBER(CHECK)                              \
  CHECK(eq) CHECK(ge) CHECK(gt) CHECK(le) CHECK(lerp) CHECK(lt) CHECK(ne)
#define TORCH_XLA_EXT_IN_PLACE_WITH_TENSOR(CHECK)                              \
  CHECK(add) CHECK(bitwise_and) CHECK(bitwise_left_shift) CHECK(bitwise_or)    \
  CHECK(bitwise_right_shift) CHECK(bitwise_xor) CHECK(clamp) CHECK(clamp_max)  \
  CHECK(clamp_min) CHECK(copysign) CHECK(div) CHECK(eq) CHECK(fmod) CHECK(ge)  \
  CHECK(gt) CHECK(le) CHECK(lerp) CHECK(lt) CHECK(mul) CHECK(ne)               \
  CHECK(remainder) CHECK(sub) CHECK(xlogy)
// clang-format on

inline void RegisterShapeChecks(torch::Library& m) {
  m.impl("addr_", CheckAddr);
  m.impl("cauchy_", CheckCauchy);
  m.impl("exponential_", CheckExponential);
  m.impl("geometric_", CheckGeometric);
  m.impl("log_normal_", CheckLogNormal);
  m.impl("logit_", CheckLogit);
  m.impl("masked_scatter_", CheckMaskedScatter);
#define TORCH_XLA_EXT_CHECK(name, overload)                         \
  ShapeCheck<at::_ops::name##_##overload, at::_ops::name##overload, \
             &at::meta::name##_>::Register(m);
#define TORCH_XLA_EXT_OF_ITSELF(name) TORCH_XLA_EXT_CHECK(name, )
#define TORCH_XLA_EXT_OF_NUMBER(name) TORCH_XLA_EXT_CHECK(name, _Scalar)
#define TORCH_XLA_EXT_OF_TENSOR(name) TORCH_XLA_EXT_CHECK(name, _Tensor)
  TORCH_XLA_EXT_IN_PLACE(TORCH_XLA_EXT_OF_ITSELF)
  TORCH_XLA_EXT_IN_PLACE_WITH_NUMBER(TORCH_XLA_EXT_OF_NUMBER)
  TORCH_XLA_EXT_IN_PLACE_WITH_TENSOR(TORCH_XLA_EXT_OF_TENSOR)
  TORCH_XLA_EXT_CHECK(div, _Tensor_mode)
  ShapeCheck<at::_ops::floor_divide__Tensor, at::_ops::floor_divide,
             &CheckFloorDivide>::Register(m);
  ShapeCheck<at::_ops::pow__Tensor, at::_ops::pow_Tensor_Tensor,
             &at::meta::pow_>::Register(m);
#undef TORCH_XLA_EXT_CHECK
#undef TORCH_XLA_EXT_OF_ITSELF
#undef TORCH_XLA_EXT_OF_NUMBER
#undef TORCH_XLA_EXT_OF_TENSOR
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_IN_PLACE_CHECKS_H_
