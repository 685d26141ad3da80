// Interposes on operators of torch_xla whose results differ from torch's, or
// that end the process.
//
// This works because the stock binary calls them through its PLT.
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/Operators.h>
#include <ATen/core/Reduction.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/front/abi/torch_xla.h"
#include "torch_xla_ext/csrc/front/on_cpu.h"
#include "torch_xla_ext/csrc/front/stock.h"

namespace torch_xla {

struct XLANativeFunctions {
  static const at::Tensor& as_strided_(const at::Tensor& self,
                                       at::IntArrayRef size,
                                       at::IntArrayRef stride,
                                       std::optional<int64_t> storage_offset);
  static at::Tensor _copy_from(const at::Tensor& self, const at::Tensor& dst,
                               bool non_blocking);  // the stock binary's
  static at::Tensor count_nonzero(const at::Tensor& self, at::IntArrayRef dim);
  static at::Tensor count_nonzero(const at::Tensor& self,
                                  std::optional<int64_t> dim);
  static at::Tensor cumsum(const at::Tensor& self, int64_t dim,
                           std::optional<at::ScalarType> dtype);
  static at::Tensor elu_backward(const at::Tensor& grad_output,
                                 const at::Scalar& alpha,
                                 const at::Scalar& scale,
                                 const at::Scalar& input_scale, bool is_result,
                                 const at::Tensor& self_or_result);
  static at::Tensor hardtanh_backward(const at::Tensor& grad_output,
                                      const at::Tensor& self,
                                      const at::Scalar& min_val,
                                      const at::Scalar& max_val);
  static std::tuple<at::Tensor, at::Tensor> linalg_inv_ex(
      const at::Tensor& self, bool check_errors);
  static std::tuple<at::Tensor, at::Tensor, at::Tensor>
  native_batch_norm_backward(const at::Tensor& grad_out,
                             const at::Tensor& input,
                             const std::optional<at::Tensor>& weight,
                             const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_var,
                             const std::optional<at::Tensor>& save_mean,
                             const std::optional<at::Tensor>& save_invstd,
                             bool train, double eps,
                             std::array<bool, 3> output_mask);
  static at::Tensor nll_loss_backward(const at::Tensor& grad_output,
                                      const at::Tensor& self,
                                      const at::Tensor& target,
                                      const std::optional<at::Tensor>& weight,
                                      int64_t reduction, int64_t ignore_index,
                                      const at::Tensor& total_weight);
  static std::tuple<at::Tensor, at::Tensor> nll_loss_forward(
      const at::Tensor& self, const at::Tensor& target,
      const std::optional<at::Tensor>& weight, int64_t reduction,
      int64_t ignore_index);
  static at::Tensor roll(const at::Tensor& self, at::IntArrayRef shifts,
                         at::IntArrayRef dims);
  static at::Tensor trace(const at::Tensor& self);
  static at::Tensor upsample_bilinear2d(const at::Tensor& self,
                                        at::IntArrayRef output_size,
                                        bool align_corners,
                                        std::optional<double> scales_h,
                                        std::optional<double> scales_w);
  static at::Tensor upsample_nearest2d(const at::Tensor& self,
                                       at::IntArrayRef output_size,
                                       std::optional<double> scales_h,
                                       std::optional<double> scales_w);
};

namespace {

// Without the functionalization wrapper, as these operators get their tensors.
at::Tensor Unwrapped(const XLATensorPtr& tensor) {
  return bridge::AtenFromXlaTensor(tensor, /*skip_functionalization=*/true);
}

}  // namespace

// torch.compile changes only the sizes of what stands for a tensor. The stock
// function fails where that is not a tensor of its own.
const at::Tensor& XLANativeFunctions::as_strided_(
    const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
    std::optional<int64_t> storage_offset) {
  if (bridge::TryGetXlaTensor(self) == nullptr) {
    return at::native::as_strided__symint(self, c10::fromIntArrayRefSlow(size),
                                          c10::fromIntArrayRefSlow(stride),
                                          storage_offset);
  }
  static auto* const stock =
      Stock(&XLANativeFunctions::as_strided_,
            "_ZN9torch_xla18XLANativeFunctions11as_strided_ERKN2at6TensorEN3c10"
            "8ArrayRefIlEES7_St8optionalIlE");
  return stock(self, size, stride, storage_offset);
}

// The process ends in the stock functions if there is one sample without a
// dimension for the batch.
at::Tensor XLANativeFunctions::nll_loss_backward(
    const at::Tensor& grad_output, const at::Tensor& self,
    const at::Tensor& target, const std::optional<at::Tensor>& weight,
    int64_t reduction, int64_t ignore_index, const at::Tensor& total_weight) {
  static auto* const stock =
      Stock(&XLANativeFunctions::nll_loss_backward,
            "_ZN9torch_xla18XLANativeFunctions17nll_loss_backwardERKN2at6Tensor"
            "ES4_S4_RKSt8optionalIS2_EllS4_");
  if (self.dim() != 1) {
    return stock(grad_output, self, target, weight, reduction, ignore_index,
                 total_weight);
  }
  const at::Tensor grad =
      reduction == at::Reduction::None ? grad_output.reshape({1}) : grad_output;
  return stock(grad, at::unsqueeze(self, 0), target.reshape({1}), weight,
               reduction, ignore_index, total_weight)
      .reshape(self.sizes());
}

std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::nll_loss_forward(
    const at::Tensor& self, const at::Tensor& target,
    const std::optional<at::Tensor>& weight, int64_t reduction,
    int64_t ignore_index) {
  static auto* const stock =
      Stock(&XLANativeFunctions::nll_loss_forward,
            "_ZN9torch_xla18XLANativeFunctions16nll_loss_forwardERKN2at6TensorE"
            "S4_RKSt8optionalIS2_Ell");
  if (self.dim() != 1) {
    return stock(self, target, weight, reduction, ignore_index);
  }
  auto [loss, total_weight] = stock(at::unsqueeze(self, 0), target.reshape({1}),
                                    weight, reduction, ignore_index);
  return {loss.reshape(target.sizes()), total_weight};
}

// The stock function treats its operand as elu's result even where it is elu's
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
  // At 0, torch uses the gradient of the negative side.
  const at::Tensor below =
      at::mul(at::exp(at::mul(self_or_result, inner)), slope * inner);
  return at::where(at::le(self_or_result, 0), at::mul(grad_output, below),
                   at::mul(grad_output, scale));
}

// At both bounds torch's gradient is 0; the stock function's is not.
at::Tensor XLANativeFunctions::hardtanh_backward(const at::Tensor& grad_output,
                                                 const at::Tensor& self,
                                                 const at::Scalar& min_val,
                                                 const at::Scalar& max_val) {
  const at::Tensor outside =
      at::logical_or(at::le(self, min_val), at::ge(self, max_val));
  return at::where(outside, at::zeros_like(grad_output), grad_output);
}

namespace {

bool IsInteger(const at::Tensor& tensor) {
  return at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
}

// Whether the source coordinates of the interpolation follow from the two sizes
// alone, as the stock functions assume. torch uses the scale.
bool FollowsFromSizes(int64_t size, int64_t output_size,
                      std::optional<double> scale) {
  return !scale.has_value() || *scale <= 0 ||
         *scale * static_cast<double>(size) == static_cast<double>(output_size);
}

bool FollowsFromSizes(const at::Tensor& self, at::IntArrayRef output_size,
                      std::optional<double> scales_h,
                      std::optional<double> scales_w) {
  return FollowsFromSizes(self.size(-2), output_size[0], scales_h) &&
         FollowsFromSizes(self.size(-1), output_size[1], scales_w);
}

double Ratio(int64_t size, int64_t output_size, std::optional<double> scale) {
  return scale.has_value() && *scale > 0
             ? 1 / *scale
             : static_cast<double>(size) / static_cast<double>(output_size);
}

// Interpolates `self` linearly at fractional positions along dimension `dim`.
at::Tensor Linear(const at::Tensor& self, int64_t dim, int64_t output_size,
                  std::optional<double> scale) {
  const int64_t size = self.size(dim);
  const at::Tensor place = at::clamp_min(
      at::sub(at::mul(at::add(at::arange(output_size, self.options()), 0.5),
                      Ratio(size, output_size, scale)),
              0.5),
      0);
  const at::Tensor below =
      at::clamp_max(at::floor(place).to(at::kLong), size - 1);
  const at::Tensor above = at::clamp_max(at::add(below, 1), size - 1);
  std::vector<int64_t> shape(self.dim(), 1);
  shape[dim < 0 ? dim + self.dim() : dim] = output_size;
  const at::Tensor weight = at::sub(place, below).view(shape);
  const at::Tensor first = at::index_select(self, dim, below);
  return at::add(
      first,
      at::mul(at::sub(at::index_select(self, dim, above), first), weight));
}

at::Tensor Nearest(const at::Tensor& self, int64_t dim, int64_t output_size,
                   std::optional<double> scale) {
  const int64_t size = self.size(dim);
  const at::Tensor place =
      at::mul(at::arange(output_size, self.options().dtype(at::kFloat)),
              static_cast<float>(Ratio(size, output_size, scale)));
  return at::index_select(
      self, dim, at::clamp_max(at::floor(place).to(at::kLong), size - 1));
}

}  // namespace

// The stock functions count in the operand's dtype: for a mask, the count is
// True.
at::Tensor XLANativeFunctions::count_nonzero(const at::Tensor& self,
                                             at::IntArrayRef dim) {
  const at::Tensor is_nonzero = at::ne(self, 0);
  return dim.empty() ? at::sum(is_nonzero, at::kLong)
                     : at::sum(is_nonzero, dim, /*keepdim=*/false, at::kLong);
}

at::Tensor XLANativeFunctions::count_nonzero(const at::Tensor& self,
                                             std::optional<int64_t> dim) {
  return dim.has_value() ? count_nonzero(self, at::IntArrayRef(*dim))
                         : count_nonzero(self, at::IntArrayRef());
}

// The two stock functions sum integers in the operand's dtype: for a mask, the
// sum is True.
at::Tensor XLANativeFunctions::cumsum(const at::Tensor& self, int64_t dim,
                                      std::optional<at::ScalarType> dtype) {
  static auto* const stock = Stock(
      &XLANativeFunctions::cumsum,
      "_ZN9torch_xla18XLANativeFunctions6cumsumERKN2at6TensorElSt8optionalIN3"
      "c1010ScalarTypeEE");
  if (!dtype.has_value() && IsInteger(self)) dtype = at::kLong;
  if (self.numel() == 0) {  // which has no lowering
    return at::empty(self.sizes(),
                     self.options().dtype(dtype.value_or(self.scalar_type())));
  }
  return stock(self, dim, dtype);
}

// The stock function's info, which is always 0, has the matrices' shape. Its
// inverses of complex matrices are wrong.
std::tuple<at::Tensor, at::Tensor> XLANativeFunctions::linalg_inv_ex(
    const at::Tensor& self, bool check_errors) {
  static auto* const stock =
      Stock(&XLANativeFunctions::linalg_inv_ex,
            "_ZN9torch_xla18XLANativeFunctions13linalg_inv_exERKN2at6TensorEb");
  if (self.is_complex()) {
    return OnCpu<at::_ops::linalg_inv_ex>(self, check_errors);
  }
  std::tuple<at::Tensor, at::Tensor> result = stock(self, check_errors);
  if (!check_errors) {
    const at::IntArrayRef batch = self.sizes().slice(0, self.dim() - 2);
    std::get<1>(result) = at::zeros(batch, self.options().dtype(at::kInt));
  }
  return result;
}

// The stock function computes the gradients of training only. In evaluation it
// fails, because there are no statistics of the batch.
std::tuple<at::Tensor, at::Tensor, at::Tensor>
XLANativeFunctions::native_batch_norm_backward(
    const at::Tensor& grad_out, const at::Tensor& input,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var,
    const std::optional<at::Tensor>& save_mean,
    const std::optional<at::Tensor>& save_invstd, bool train, double eps,
    std::array<bool, 3> output_mask) {
  static auto* const stock =
      Stock(&XLANativeFunctions::native_batch_norm_backward,
            "_ZN9torch_xla18XLANativeFunctions26native_batch_norm_backwardERKN2"
            "at6TensorES4_RKSt8optionalIS2_ES8_S8_S8_S8_bdSt5arrayIbLm3EE");
  if (train || !running_mean.has_value() || !running_var.has_value()) {
    return stock(grad_out, input, weight, running_mean, running_var, save_mean,
                 save_invstd, train, eps, output_mask);
  }
  std::vector<int64_t> channels(input.dim(), 1);
  channels[1] = input.size(1);
  std::vector<int64_t> others;
  for (int64_t i = 0; i < input.dim(); ++i) {
    if (i != 1) others.push_back(i);
  }
  const at::Tensor factor = at::rsqrt(at::add(*running_var, eps));
  std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients;
  if (output_mask[0]) {
    const bool has_weight = weight.has_value() && weight->defined();
    const at::Tensor scale = has_weight ? at::mul(factor, *weight) : factor;
    std::get<0>(gradients) = at::mul(grad_out, at::view_copy(scale, channels))
                                 .to(input.scalar_type());
  }
  if (output_mask[1]) {
    const at::Tensor centered =
        at::sub(input, at::view_copy(*running_mean, channels));
    std::get<1>(gradients) =
        at::mul(at::sum(at::mul(grad_out, centered), others), factor);
  }
  if (output_mask[2]) {
    std::get<2>(gradients) =
        at::sum(grad_out, others, /*keepdim=*/false, factor.scalar_type());
  }
  return gradients;
}

// The stock function divides by the size of a dimension, which ends the process
// if it is 0.
at::Tensor XLANativeFunctions::roll(const at::Tensor& self,
                                    at::IntArrayRef shifts,
                                    at::IntArrayRef dims) {
  if (self.numel() == 0) return at::clone(self);
  static auto* const stock =
      Stock(&XLANativeFunctions::roll,
            "_ZN9torch_xla18XLANativeFunctions4rollERKN2at6TensorEN3c108ArrayRe"
            "fIlEES7_");
  return stock(self, shifts, dims);
}

at::Tensor XLANativeFunctions::trace(const at::Tensor& self) {
  static auto* const stock =
      Stock(&XLANativeFunctions::trace,
            "_ZN9torch_xla18XLANativeFunctions5traceERKN2at6TensorE");
  return stock(IsInteger(self) ? self.to(at::kLong) : self);
}

at::Tensor XLANativeFunctions::upsample_bilinear2d(
    const at::Tensor& self, at::IntArrayRef output_size, bool align_corners,
    std::optional<double> scales_h, std::optional<double> scales_w) {
  // torch interpolates half precision in float32.
  const at::ScalarType dtype = self.scalar_type();
  if (dtype == at::kHalf || dtype == at::kBFloat16) {
    return upsample_bilinear2d(self.to(at::kFloat), output_size, align_corners,
                               scales_h, scales_w)
        .to(dtype);
  }
  if (align_corners ||
      FollowsFromSizes(self, output_size, scales_h, scales_w)) {
    static auto* const stock =
        Stock(&XLANativeFunctions::upsample_bilinear2d,
              "_ZN9torch_xla18XLANativeFunctions19upsample_bilinear2dERKN2at6Te"
              "nsorEN3c108ArrayRefIlEEbSt8optionalIdES9_");
    return stock(self, output_size, align_corners, scales_h, scales_w);
  }
  const at::Tensor values =
      at::isFloatingType(dtype) ? self : self.to(at::kFloat);
  const at::Tensor rows = Linear(values, -2, output_size[0], scales_h);
  return Linear(rows, -1, output_size[1], scales_w).to(dtype);
}

at::Tensor XLANativeFunctions::upsample_nearest2d(
    const at::Tensor& self, at::IntArrayRef output_size,
    std::optional<double> scales_h, std::optional<double> scales_w) {
  if (FollowsFromSizes(self, output_size, scales_h, scales_w)) {
    static auto* const stock =
        Stock(&XLANativeFunctions::upsample_nearest2d,
              "_ZN9torch_xla18XLANativeFunctions18upsample_nearest2dERKN2at6Ten"
              "sorEN3c108ArrayRefIlEESt8optionalIdES9_");
    return stock(self, output_size, scales_h, scales_w);
  }
  return Nearest(Nearest(self, -2, output_size[0], scales_h), -1,
                 output_size[1], scales_w);
}

namespace tensor_methods {

// For running_var, torch divides the variance by n - 1, the stock function by
// n.
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

// The stock function divides by the strides, which ends the process if one is
// 0, and computes something for the other wrong values.
static void CheckPool(const char* name, const std::vector<int64_t>& kernel_size,
                      const std::vector<int64_t>& stride,
                      const std::vector<int64_t>& padding) {
  for (size_t i = 0; i < kernel_size.size(); ++i) {
    const int64_t kernel = kernel_size[i];
    TORCH_CHECK(kernel > 0, name, ": kernel_size must be above 0, but is ",
                at::IntArrayRef(kernel_size));
    const int64_t pad = padding.size() == 1  ? padding[0]
                        : i < padding.size() ? padding[i]
                                             : 0;
    TORCH_CHECK(pad >= 0 && pad <= kernel / 2, name,
                ": padding must be 0 to half of kernel_size ",
                at::IntArrayRef(kernel_size), ", but is ",
                at::IntArrayRef(padding));
  }
  for (int64_t step : stride) {
    TORCH_CHECK(step > 0, name, ": stride must be above 0, but is ",
                at::IntArrayRef(stride));
  }
}

std::tuple<XLATensorPtr, XLATensorPtr> max_pool_nd(
    const XLATensorPtr& input, int64_t spatial_dim_count,
    std::vector<int64_t> kernel_size, std::vector<int64_t> stride,
    std::vector<int64_t> padding, bool ceil_mode) {
  CheckPool("max_pool", kernel_size, stride, padding);
  static auto* const stock = Stock(
      &max_pool_nd,
      "_ZN9torch_xla14tensor_methods11max_pool_ndERKN3c1013intrusive_ptrINS_"
      "9XLATensorENS1_6detail34intrusive_target_default_null_typeIS3_EEEElSt6"
      "vectorIlSaIlEESC_SC_b");
  return stock(input, spatial_dim_count, std::move(kernel_size),
               std::move(stride), std::move(padding), ceil_mode);
}

XLATensorPtr avg_pool_nd(const XLATensorPtr& input, int64_t spatial_dim_count,
                         std::vector<int64_t> kernel_size,
                         std::vector<int64_t> stride,
                         std::vector<int64_t> padding, bool ceil_mode,
                         bool count_include_pad,
                         std::optional<int> divisor_override) {
  CheckPool("avg_pool", kernel_size, stride, padding);
  static auto* const stock = Stock(
      &avg_pool_nd,
      "_ZN9torch_xla14tensor_methods11avg_pool_ndERKN3c1013intrusive_ptrINS_"
      "9XLATensorENS1_6detail34intrusive_target_default_null_typeIS3_EEEElSt6"
      "vectorIlSaIlEESC_SC_bbSt8optionalIiE");
  return stock(input, spatial_dim_count, std::move(kernel_size),
               std::move(stride), std::move(padding), ceil_mode,
               count_include_pad, divisor_override);
}

// The stock function sums powers even if p is infinite.
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
