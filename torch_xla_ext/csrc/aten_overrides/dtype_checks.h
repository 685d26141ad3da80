// Checks for dtypes that PyTorch's meta functions accept but its kernels
// reject. Without the checks, XLA computes wrong numbers, fails to compile the
// program, or crashes the process, as in max pooling of complex numbers.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_DTYPE_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_DTYPE_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/library.h>

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

// Dtypes of matrices that can be decomposed.
inline bool IsMatrix(at::ScalarType type) {
  return IsFraction(type) && !at::isReducedFloatingType(type);
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
    TORCH_CHECK(
        kIsComputed(self.scalar_type()), Op::name + kNamespace.size(),
        ": not implemented for '", self.scalar_type(), "'",
        kIsComputed == &IsMatrix ? ": convert the tensor to float32" : "");
    return RegisteredKernel<Op, OfDtypes>::template Call<
        Result, const at::Tensor&, Args...>(keys, self,
                                            std::forward<Args>(args)...);
  }

  static void Register(torch::Library& m) {
    RegisteredKernel<Op, OfDtypes>::Replace(m, TORCH_FN(Call));
  }
};

template <bool (*kIsComputed)(at::ScalarType), typename... Ops>
void RegisterOfDtypes(torch::Library& m) {
  (OfDtypes<Ops, kIsComputed>::Register(m), ...);
}

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

// Calls `kMeta`, after a check for operators that PyTorch does not implement
// for booleans or complex numbers.
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

// A loss, either operand of which may be integers.
inline void CheckLoss(const char* name, const at::Tensor& self,
                      const at::Tensor& target) {
  CheckBroadcast(self, target);
  const at::ScalarType type = at::result_type(self, target);
  TORCH_CHECK(at::isFloatingType(type), name, ": not implemented for '", type,
              "'");
}

// A loss that has the type of `self`.
inline void CheckHuberLoss(const char* name, const at::Tensor& self,
                           const at::Tensor& target) {
  CheckLoss(name, self, target);
  TORCH_CHECK(at::isFloatingType(self.scalar_type()), name,
              ": a loss of dtype ", at::result_type(self, target),
              " cannot be converted to the input's dtype, ",
              self.scalar_type());
}

inline void RegisterDtypeChecks(torch::Library& m) {
  CheckedCall<at::_ops::huber_loss, &CheckHuberLoss>::Register(m);
  CheckedCall<at::_ops::mse_loss, &CheckLoss>::Register(m);
  CheckedCall<at::_ops::smooth_l1_loss, &CheckLoss>::Register(m);
  namespace op = at::_ops;
  RegisterOfDtypes<
      IsFloating, op::_adaptive_avg_pool2d, op::_adaptive_avg_pool3d,
      op::_log_softmax_backward_data, op::_softmax_backward_data,
      op::_native_batch_norm_legit, op::_native_batch_norm_legit_no_stats,
      op::native_batch_norm, op::native_layer_norm, op::_embedding_bag,
      op::_embedding_bag_forward_only, op::_prelu_kernel,
      op::adaptive_max_pool2d, op::bernoulli, op::binary_cross_entropy,
      op::celu, op::elu, op::frac, op::gelu, op::glu, op::hardshrink,
      op::hardsigmoid, op::hardswish, op::leaky_relu, op::log_sigmoid_forward,
      op::max_unpool2d, op::max_unpool3d, op::mish, op::nll_loss2d_forward,
      op::nll_loss_forward, op::softplus, op::softshrink>(m);
  RegisterOfDtypes<IsFraction, op::std_correction, op::std_mean_correction,
                   op::var_correction, op::var_mean_correction>(m);
  RegisterOfDtypes<IsMatrix, op::_cdist_forward, op::_linalg_eigh,
                   op::_linalg_svd, op::_pdist_forward, op::cholesky,
                   op::triangular_solve>(m);
  RegisterOfDtypes<IsAveraged, op::avg_pool2d, op::avg_pool3d>(m);
  RegisterOfDtypes<IsNumber, op::convolution_overrideable, op::reflection_pad1d,
                   op::reflection_pad2d, op::reflection_pad3d,
                   op::replication_pad1d, op::replication_pad2d,
                   op::replication_pad3d, op::mvlgamma, op::trace>(m);
  RegisterOfDtypes<IsReal, op::erf, op::erfc, op::logit>(m);
  RegisterOfDtypes<IsRealNumber, op::hardtanh, op::max_pool2d_with_indices,
                   op::max_pool3d_with_indices, op::round, op::threshold>(m);
  RegisterOfDtypes<IsPixel, op::upsample_bilinear2d, op::upsample_nearest2d>(m);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_DTYPE_CHECKS_H_
