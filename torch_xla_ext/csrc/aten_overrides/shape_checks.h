// Checks the shapes and dtypes of an in-place operator, such as
// `x.lerp_(gradient, 0.1)`, as PyTorch does, before it is functionalized.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SHAPE_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SHAPE_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/MetaFunctions.h>
#include <torch/library.h>

#include <optional>
#include <string>

namespace torch_xla_ext::aten_overrides {

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
    TORCH_CHECK(c10::canCast(result.scalar_type(), self.scalar_type()),
                "result type ", result.scalar_type(),
                " can't be cast to the desired output type ",
                self.scalar_type());
    return self;
  }

  static void Register(torch::Library& m) {
    std::string name = InPlace::name;
    if (*InPlace::overload_name != '\0') {
      name += std::string(".") + InPlace::overload_name;
    }
    m.impl(name.c_str(), Call);
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
#define TORCH_XLA_EXT_OF_TWO(name)   \
  TORCH_XLA_EXT_CHECK(name, _Scalar) \
  TORCH_XLA_EXT_CHECK(name, _Tensor)
  TORCH_XLA_EXT_OF_ITSELF(acos)
  TORCH_XLA_EXT_OF_ITSELF(acosh)
  TORCH_XLA_EXT_OF_ITSELF(asin)
  TORCH_XLA_EXT_OF_ITSELF(asinh)
  TORCH_XLA_EXT_OF_ITSELF(atan)
  TORCH_XLA_EXT_OF_ITSELF(atanh)
  TORCH_XLA_EXT_OF_ITSELF(ceil)
  TORCH_XLA_EXT_OF_ITSELF(cos)
  TORCH_XLA_EXT_OF_ITSELF(cosh)
  TORCH_XLA_EXT_OF_ITSELF(digamma)
  TORCH_XLA_EXT_OF_ITSELF(erf)
  TORCH_XLA_EXT_OF_ITSELF(erfc)
  TORCH_XLA_EXT_OF_ITSELF(erfinv)
  TORCH_XLA_EXT_OF_ITSELF(exp)
  TORCH_XLA_EXT_OF_ITSELF(exp2)
  TORCH_XLA_EXT_OF_ITSELF(expm1)
  TORCH_XLA_EXT_OF_ITSELF(floor)
  TORCH_XLA_EXT_OF_ITSELF(frac)
  TORCH_XLA_EXT_OF_ITSELF(lgamma)
  TORCH_XLA_EXT_OF_ITSELF(log)
  TORCH_XLA_EXT_OF_ITSELF(log10)
  TORCH_XLA_EXT_OF_ITSELF(log1p)
  TORCH_XLA_EXT_OF_ITSELF(log2)
  TORCH_XLA_EXT_OF_ITSELF(neg)
  TORCH_XLA_EXT_OF_ITSELF(reciprocal)
  TORCH_XLA_EXT_OF_ITSELF(round)
  TORCH_XLA_EXT_OF_ITSELF(rsqrt)
  TORCH_XLA_EXT_OF_ITSELF(sgn)
  TORCH_XLA_EXT_OF_ITSELF(sigmoid)
  TORCH_XLA_EXT_OF_ITSELF(sign)
  TORCH_XLA_EXT_OF_ITSELF(silu)
  TORCH_XLA_EXT_OF_ITSELF(sin)
  TORCH_XLA_EXT_OF_ITSELF(sinc)
  TORCH_XLA_EXT_OF_ITSELF(sinh)
  TORCH_XLA_EXT_OF_ITSELF(sqrt)
  TORCH_XLA_EXT_OF_ITSELF(tan)
  TORCH_XLA_EXT_OF_ITSELF(tanh)
  TORCH_XLA_EXT_OF_ITSELF(trunc)
  TORCH_XLA_EXT_CHECK(add, _Tensor)
  TORCH_XLA_EXT_OF_ITSELF(addcdiv)
  TORCH_XLA_EXT_OF_ITSELF(addcmul)
  TORCH_XLA_EXT_OF_ITSELF(addmm)
  TORCH_XLA_EXT_OF_ITSELF(addmv)
  TORCH_XLA_EXT_OF_ITSELF(atan2)
  TORCH_XLA_EXT_OF_ITSELF(baddbmm)
  TORCH_XLA_EXT_CHECK(bitwise_and, _Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_left_shift, _Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_or, _Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_right_shift, _Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_xor, _Tensor)
  TORCH_XLA_EXT_OF_ITSELF(clamp)
  TORCH_XLA_EXT_CHECK(clamp, _Tensor)
  TORCH_XLA_EXT_OF_ITSELF(clamp_max)
  TORCH_XLA_EXT_CHECK(clamp_max, _Tensor)
  TORCH_XLA_EXT_OF_ITSELF(clamp_min)
  TORCH_XLA_EXT_CHECK(clamp_min, _Tensor)
  TORCH_XLA_EXT_CHECK(copysign, _Tensor)
  TORCH_XLA_EXT_CHECK(div, _Tensor)
  TORCH_XLA_EXT_CHECK(div, _Tensor_mode)
  TORCH_XLA_EXT_OF_ITSELF(elu)
  TORCH_XLA_EXT_CHECK(fmod, _Tensor)
  TORCH_XLA_EXT_OF_ITSELF(gcd)
  TORCH_XLA_EXT_OF_ITSELF(gelu)
  TORCH_XLA_EXT_OF_ITSELF(heaviside)
  TORCH_XLA_EXT_OF_ITSELF(hypot)
  TORCH_XLA_EXT_OF_ITSELF(igamma)
  TORCH_XLA_EXT_OF_ITSELF(igammac)
  TORCH_XLA_EXT_OF_ITSELF(lcm)
  TORCH_XLA_EXT_OF_ITSELF(leaky_relu)
  TORCH_XLA_EXT_CHECK(mul, _Tensor)
  TORCH_XLA_EXT_OF_ITSELF(nextafter)
  TORCH_XLA_EXT_CHECK(remainder, _Tensor)
  TORCH_XLA_EXT_CHECK(sub, _Tensor)
  TORCH_XLA_EXT_CHECK(xlogy, _Tensor)
  TORCH_XLA_EXT_OF_TWO(eq)
  TORCH_XLA_EXT_OF_TWO(ge)
  TORCH_XLA_EXT_OF_TWO(gt)
  TORCH_XLA_EXT_OF_TWO(le)
  TORCH_XLA_EXT_OF_TWO(lerp)
  TORCH_XLA_EXT_OF_TWO(lt)
  TORCH_XLA_EXT_OF_TWO(ne)
  ShapeCheck<at::_ops::floor_divide__Tensor, at::_ops::floor_divide,
             &CheckFloorDivide>::Register(m);
  ShapeCheck<at::_ops::pow__Tensor, at::_ops::pow_Tensor_Tensor,
             &at::meta::pow_>::Register(m);
#undef TORCH_XLA_EXT_CHECK
#undef TORCH_XLA_EXT_OF_ITSELF
#undef TORCH_XLA_EXT_OF_TWO
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SHAPE_CHECKS_H_
