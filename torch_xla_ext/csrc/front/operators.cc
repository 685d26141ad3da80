// Stands before operators of torch_xla whose numbers are not torch's.
//
// It may, because the stock binary calls them through its PLT.
#include <ATen/ATen.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>

#include "torch_xla_ext/csrc/front/abi/torch_xla.h"

namespace torch_xla {

struct XLANativeFunctions {
  static at::Tensor _copy_from(const at::Tensor& self, const at::Tensor& dst,
                               bool non_blocking);  // the stock binary's
  static at::Tensor elu_backward(const at::Tensor& grad_output,
                                 const at::Scalar& alpha,
                                 const at::Scalar& scale,
                                 const at::Scalar& input_scale, bool is_result,
                                 const at::Tensor& self_or_result);
  static at::Tensor hardtanh_backward(const at::Tensor& grad_output,
                                      const at::Tensor& self,
                                      const at::Scalar& min_val,
                                      const at::Scalar& max_val);
};

namespace {

// As inside functionalization, where these operators are called.
at::Tensor Unwrapped(const XLATensorPtr& tensor) {
  return bridge::AtenFromXlaTensor(tensor, /*skip_functionalization=*/true);
}

template <typename Function>
Function* Stock(Function*, const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol));
}

}  // namespace

// The stock one takes its operand for elu's result also where it is elu's
// operand.
at::Tensor XLANativeFunctions::elu_backward(const at::Tensor& grad_output,
                                            const at::Scalar& alpha,
                                            const at::Scalar& scale,
                                            const at::Scalar& input_scale,
                                            bool is_result,
                                            const at::Tensor& self_or_result) {
  if (is_result) {
    static auto* const stock =
        Stock(&XLANativeFunctions::elu_backward,
              "_ZN9torch_xla18XLANativeFunctions12elu_backwardERKN2at6TensorERK"
              "N3c106ScalarES8_S8_bS4_");
    return stock(grad_output, alpha, scale, input_scale, is_result,
                 self_or_result);
  }
  const double slope = scale.toDouble() * alpha.toDouble();
  const double inner = input_scale.toDouble();
  // At 0 torch takes the side of the negative.
  const at::Tensor below =
      at::mul(at::exp(at::mul(self_or_result, inner)), slope * inner);
  return at::where(at::le(self_or_result, 0), at::mul(grad_output, below),
                   at::mul(grad_output, scale));
}

// At both bounds torch's is 0, the stock one's is not.
at::Tensor XLANativeFunctions::hardtanh_backward(const at::Tensor& grad_output,
                                                 const at::Tensor& self,
                                                 const at::Scalar& min_val,
                                                 const at::Scalar& max_val) {
  const at::Tensor outside =
      at::logical_or(at::le(self, min_val), at::ge(self, max_val));
  return at::where(outside, at::zeros_like(grad_output), grad_output);
}

namespace tensor_methods {

// torch divides the variance of running_var by n - 1, the stock one by n.
std::tuple<XLATensorPtr, XLATensorPtr, XLATensorPtr> native_batch_norm(
    const XLATensorPtr& input, const XLATensorPtr& weight,
    const XLATensorPtr& bias, XLATensorPtr& running_mean,
    XLATensorPtr& running_var, bool training, double momentum, double eps) {
  static auto* const stock =
      Stock(&native_batch_norm,
            "_ZN9torch_xla14tensor_methods17native_batch_normERKN3c1013in"
            "trusive_ptrINS_9XLATensorENS1_6detail34intrusive_target_defa"
            "ult_null_typeIS3_EEEES9_S9_RS7_SA_bdd");
  if (!training || running_var == nullptr) {
    return stock(input, weight, bias, running_mean, running_var, training,
                 momentum, eps);
  }
  const at::Tensor kept = at::mul(Unwrapped(running_var), 1 - momentum);
  const auto results = stock(input, weight, bias, running_mean, running_var,
                             training, momentum, eps);
  const at::Tensor values = Unwrapped(input);
  const int64_t n = values.numel() / std::max<int64_t>(values.size(1), 1);
  if (n > 1) {
    const at::Tensor updated = Unwrapped(running_var);
    const double factor = static_cast<double>(n) / static_cast<double>(n - 1);
    XLANativeFunctions::_copy_from(
        at::add(kept, at::sub(updated, kept), factor), updated,
        /*non_blocking=*/false);
  }
  return results;
}

// The stock one adds up powers also where p is infinite.
XLATensorPtr norm(const XLATensorPtr& input, const std::optional<at::Scalar>& p,
                  std::optional<at::ScalarType> dtype, at::IntArrayRef dim,
                  bool keepdim) {
  if (!p.has_value() || !std::isinf(p->toDouble())) {
    static auto* const stock = Stock(
        &norm,
        "_ZN9torch_xla14tensor_methods4normERKN3c1013intrusive_ptrINS_"
        "9XLATensorENS1_6detail34intrusive_target_default_null_typeIS3_EEEERKSt"
        "8optionalINS1_6ScalarEESA_INS1_10ScalarTypeEENS1_8ArrayRefIlEEb");
    return stock(input, p, dtype, dim, keepdim);
  }
  at::Tensor magnitude = at::abs(Unwrapped(input));
  if (dtype.has_value()) magnitude = magnitude.to(*dtype);
  return bridge::TryGetXlaTensor(p->toDouble() > 0
                                     ? at::amax(magnitude, dim, keepdim)
                                     : at::amin(magnitude, dim, keepdim));
}

}  // namespace tensor_methods
}  // namespace torch_xla
