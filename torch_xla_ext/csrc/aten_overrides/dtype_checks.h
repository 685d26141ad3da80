// Checks for dtypes that PyTorch's meta functions accept but its kernels
// reject. Without the checks, XLA computes wrong numbers, fails to compile the
// program, or crashes the process, as in max pooling of complex numbers.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_DTYPE_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_DTYPE_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"
#include "torch_xla_ext/csrc/aten_overrides/size_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

inline bool IsFloating(at::ScalarType type) { return at::isFloatingType(type); }

inline bool IsFraction(at::ScalarType type) {
  return at::isFloatingType(type) || at::isComplexType(type);
}

inline bool IsReal(at::ScalarType type) { return !at::isComplexType(type); }

inline bool IsNumber(at::ScalarType type) { return type != at::kBool; }

inline bool IsRealNumber(at::ScalarType type) {
  return IsReal(type) && IsNumber(type);
}

// Dtypes of images.
inline bool IsPixel(at::ScalarType type) {
  return at::isFloatingType(type) || type == at::kByte;
}

// Dtypes that can be averaged.
inline bool IsAveraged(at::ScalarType type) {
  return at::isFloatingType(type) || type == at::kLong;
}

// The kernel of an operator; throws unless `kIsComputed` is true of its first
// operand's dtype.
template <typename Op, bool (*kIsComputed)(at::ScalarType),
          typename Schema = typename Op::schema>
struct OfDtypes;

template <typename Op, bool (*kIsComputed)(at::ScalarType), typename Result,
          typename... Args>
struct OfDtypes<Op, kIsComputed, Result(const at::Tensor&, Args...)> {
  static Result Call(c10::DispatchKeySet keys, const at::Tensor& self,
                     Args... args) {
    TORCH_CHECK(kIsComputed(self.scalar_type()),
                std::string(Op::name).substr(std::string("aten::").size()),
                ": not implemented for '", self.scalar_type(), "'");
    return RegisteredKernel<Op, OfDtypes>::template Call<
        Result, const at::Tensor&, Args...>(keys, self,
                                            std::forward<Args>(args)...);
  }

  static void Register(torch::Library& m) {
    RegisteredKernel<Op, OfDtypes>::Replace(m, TORCH_FN(Call));
  }
};

// `kMeta` for operators that PyTorch does not implement for integers.
template <auto kMeta, typename Function = decltype(kMeta)>
struct OfFractions;

template <auto kMeta, typename Result, typename... Args>
struct OfFractions<kMeta, Result (*)(const at::Tensor&, Args...)> {
  static void Call(const at::Tensor& self, Args... args) {
    kMeta(self, args...);
    TORCH_CHECK(!at::isIntegralType(self.scalar_type(), /*includeBool=*/true),
                "not implemented for '", self.scalar_type(),
                "': convert the tensor to a floating-point dtype");
  }
};

// `kMeta` for operators that PyTorch does not implement for complex numbers.
template <auto kMeta, typename Function = decltype(kMeta)>
struct OfReals;

template <auto kMeta, typename Result, typename... Args>
struct OfReals<kMeta, Result (*)(Args...)> {
  static void Call(Args... args) {
    kMeta(args...);
    TORCH_CHECK(!(IsComplex(args) || ...),
                "not implemented for complex numbers");
  }
};

// `kMeta` for operators that PyTorch does not implement for booleans or complex
// numbers.
template <auto kMeta, typename Function = decltype(kMeta)>
struct OfNumbers;

template <auto kMeta, typename Result, typename... Args>
struct OfNumbers<kMeta, Result (*)(const at::Tensor&, Args...)> {
  static void Call(const at::Tensor& self, Args... args) {
    kMeta(self, args...);
    TORCH_CHECK(self.scalar_type() != at::kBool,
                "not implemented for 'Bool': convert the tensor to integers");
    TORCH_CHECK(!self.is_complex(), "not implemented for complex numbers");
  }
};

// `kMeta` for operators whose results cannot be booleans.
template <auto kMeta, typename Function = decltype(kMeta)>
struct WithNumbers;

template <auto kMeta, typename Result, typename... Args>
struct WithNumbers<kMeta, Result (*)(Args...)> {
  static void Call(Args... args) {
    TORCH_CHECK(kMeta(args...).scalar_type() != at::kBool,
                "not implemented for 'Bool': convert the tensor to integers");
  }
};

// A loss, either operand of which may be integers.
inline void CheckLoss(const char* name, const at::Tensor& self,
                      const at::Tensor& target) {
  CheckBroadcast(self, target);
  const at::ScalarType type = at::result_type(self, target);
  TORCH_CHECK(at::isFloatingType(type), name, ": not implemented for '", type,
              "'");
}

inline void RegisterDtypeChecks(torch::Library& m) {
  CheckedCall<at::_ops::huber_loss, &CheckLoss>::Register(m);
  CheckedCall<at::_ops::mse_loss, &CheckLoss>::Register(m);
  CheckedCall<at::_ops::smooth_l1_loss, &CheckLoss>::Register(m);
#define TORCH_XLA_EXT_CHECK(name, is_computed) \
  OfDtypes<at::_ops::name, &is_computed>::Register(m);
  TORCH_XLA_EXT_CHECK(_adaptive_avg_pool2d, IsFloating)
  TORCH_XLA_EXT_CHECK(_adaptive_avg_pool3d, IsFloating)
  TORCH_XLA_EXT_CHECK(_embedding_bag, IsFloating)
  TORCH_XLA_EXT_CHECK(_embedding_bag_forward_only, IsFloating)
  TORCH_XLA_EXT_CHECK(_linalg_svd, IsFraction)
  TORCH_XLA_EXT_CHECK(_prelu_kernel, IsFloating)
  TORCH_XLA_EXT_CHECK(adaptive_max_pool2d, IsFloating)
  TORCH_XLA_EXT_CHECK(avg_pool2d, IsAveraged)
  TORCH_XLA_EXT_CHECK(avg_pool3d, IsAveraged)
  TORCH_XLA_EXT_CHECK(bernoulli, IsFloating)
  TORCH_XLA_EXT_CHECK(binary_cross_entropy, IsFloating)
  TORCH_XLA_EXT_CHECK(celu, IsFloating)
  TORCH_XLA_EXT_CHECK(cholesky, IsFraction)
  TORCH_XLA_EXT_CHECK(convolution_overrideable, IsNumber)
  TORCH_XLA_EXT_CHECK(elu, IsFloating)
  TORCH_XLA_EXT_CHECK(erf, IsReal)
  TORCH_XLA_EXT_CHECK(erfc, IsReal)
  TORCH_XLA_EXT_CHECK(frac, IsFloating)
  TORCH_XLA_EXT_CHECK(gelu, IsFloating)
  TORCH_XLA_EXT_CHECK(glu, IsFloating)
  TORCH_XLA_EXT_CHECK(hardshrink, IsFloating)
  TORCH_XLA_EXT_CHECK(hardsigmoid, IsFloating)
  TORCH_XLA_EXT_CHECK(hardswish, IsFloating)
  TORCH_XLA_EXT_CHECK(hardtanh, IsRealNumber)
  TORCH_XLA_EXT_CHECK(leaky_relu, IsFloating)
  TORCH_XLA_EXT_CHECK(log_sigmoid_forward, IsFloating)
  TORCH_XLA_EXT_CHECK(logit, IsReal)
  TORCH_XLA_EXT_CHECK(max_pool2d_with_indices, IsRealNumber)
  TORCH_XLA_EXT_CHECK(max_pool3d_with_indices, IsRealNumber)
  TORCH_XLA_EXT_CHECK(max_unpool2d, IsFloating)
  TORCH_XLA_EXT_CHECK(max_unpool3d, IsFloating)
  TORCH_XLA_EXT_CHECK(mish, IsFloating)
  TORCH_XLA_EXT_CHECK(nll_loss2d_forward, IsFloating)
  TORCH_XLA_EXT_CHECK(nll_loss_forward, IsFloating)
  TORCH_XLA_EXT_CHECK(reflection_pad1d, IsNumber)
  TORCH_XLA_EXT_CHECK(reflection_pad2d, IsNumber)
  TORCH_XLA_EXT_CHECK(reflection_pad3d, IsNumber)
  TORCH_XLA_EXT_CHECK(replication_pad1d, IsNumber)
  TORCH_XLA_EXT_CHECK(replication_pad2d, IsNumber)
  TORCH_XLA_EXT_CHECK(replication_pad3d, IsNumber)
  TORCH_XLA_EXT_CHECK(round, IsRealNumber)
  TORCH_XLA_EXT_CHECK(softplus, IsFloating)
  TORCH_XLA_EXT_CHECK(softshrink, IsFloating)
  TORCH_XLA_EXT_CHECK(std_correction, IsFraction)
  TORCH_XLA_EXT_CHECK(std_mean_correction, IsFraction)
  TORCH_XLA_EXT_CHECK(threshold, IsRealNumber)
  TORCH_XLA_EXT_CHECK(upsample_bilinear2d, IsPixel)
  TORCH_XLA_EXT_CHECK(upsample_nearest2d, IsPixel)
  TORCH_XLA_EXT_CHECK(var_correction, IsFraction)
  TORCH_XLA_EXT_CHECK(var_mean_correction, IsFraction)
#undef TORCH_XLA_EXT_CHECK
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_DTYPE_CHECKS_H_
