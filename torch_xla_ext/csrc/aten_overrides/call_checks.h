// The checks of shapes and dtypes that PyTorch makes of a call, before an XLA
// kernel traces it.
//
// Upstream's kernels check some calls, by XLA_CHECK, and leave others to XLA,
// which sees them when the program is compiled, or computes something.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CALL_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CALL_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"
#include "torch_xla_ext/csrc/aten_overrides/pooling.h"

namespace torch_xla_ext::aten_overrides {

// What PyTorch's kernels check, and their functions for meta tensors do not.

inline void CheckSameType(const char* name, const at::Tensor& a,
                          const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), name,
              ": expected both operands to have the same dtype, but got: ",
              a.scalar_type(), " != ", b.scalar_type());
}

// Of a product. torch_xla.experimental.xla_quantized_matmul multiplies floats
// by int8, which XLA does as the weight's values say.
inline void CheckFactors(const char* name, const at::Tensor& a,
                         const at::Tensor& b) {
  const auto is_quantized = [](const at::Tensor& weight,
                               const at::Tensor& other) {
    return weight.scalar_type() == at::kChar && other.is_floating_point();
  };
  if (is_quantized(a, b) || is_quantized(b, a)) return;
  CheckSameType(name, a, b);
}

// `kMeta` of operators that PyTorch's kernels compute of no integers.
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

// torch_xla's own functions copy integers of one type to another.
inline void CheckIndexCopy(const at::Tensor& self, int64_t dim,
                           const at::Tensor& index, const at::Tensor& source) {
  at::meta::index_copy(
      self, dim, index,
      at::detail::empty_meta(source.sizes(), self.scalar_type()));
}

// Upstream's error is a RuntimeError, PyTorch's an IndexError.
inline void CheckExtremum(const char* name, const at::Tensor& self,
                          int64_t dim) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(self.dim() == 0 || self.size(wrapped) != 0, name,
              "(): Expected reduction dim ", wrapped,
              " to have non-zero size.");
  TORCH_CHECK(!self.is_complex(), name, ": not supported for complex numbers");
}

inline void CheckMax(const at::Tensor& self, int64_t dim, bool) {
  CheckExtremum("max", self, dim);
}

inline void CheckMin(const at::Tensor& self, int64_t dim, bool) {
  CheckExtremum("min", self, dim);
}

inline void CheckMm(const at::Tensor& self, const at::Tensor& other) {
  at::meta::mm(self, other);
  CheckFactors("mm", self, other);
}

inline void CheckBmm(const at::Tensor& self, const at::Tensor& other) {
  at::meta::bmm(self, other);
  CheckFactors("bmm", self, other);
}

inline void CheckMv(const at::Tensor& self, const at::Tensor& vec) {
  TORCH_CHECK(self.dim() == 2 && vec.dim() == 1 && self.size(1) == vec.size(0),
              "size mismatch, got input (", self.sizes(), "), vec (",
              vec.sizes(), ")");
  CheckSameType("mv", self, vec);
}

inline void CheckDot(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1,
              "1D tensors expected, but got ", self.dim(), "D and ",
              other.dim(), "D tensors");
  CheckSameType("dot", self, other);
  TORCH_CHECK(self.numel() == other.numel(),
              "inconsistent tensor size, expected tensor [", self.numel(),
              "] and src [", other.numel(),
              "] to have the same number of elements");
}

inline void CheckAddmm(const at::Tensor& self, const at::Tensor& a,
                       const at::Tensor& b, const at::Scalar& beta,
                       const at::Scalar& alpha) {
  at::meta::addmm(self, a, b, beta, alpha);
  CheckSameType("addmm", a, b);
  CheckSameType("addmm", self, a);
}

inline void CheckBaddbmm(const at::Tensor& self, const at::Tensor& a,
                         const at::Tensor& b, const at::Scalar& beta,
                         const at::Scalar& alpha) {
  at::meta::baddbmm(self, a, b, beta, alpha);
  CheckSameType("baddbmm", a, b);
  CheckSameType("baddbmm", self, a);
}

inline void CheckConvolution(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias,
                             c10::SymIntArrayRef stride, c10::SymIntArrayRef,
                             c10::SymIntArrayRef dilation, bool transposed,
                             c10::SymIntArrayRef output_padding, c10::SymInt) {
  CheckSameType("convolution", input, weight);
  if (bias && bias->defined()) CheckSameType("convolution", input, *bias);
  if (!transposed) return;
  for (size_t i = 0; i < output_padding.size(); ++i) {
    TORCH_CHECK(
        output_padding[i] < stride[i] || output_padding[i] < dilation[i],
        "output padding must be smaller than either stride or "
        "dilation, but got output padding ",
        output_padding, ", stride ", stride, " and dilation ", dilation);
  }
}

inline void CheckIsLong(const char* name, const at::Tensor& target) {
  TORCH_CHECK(
      target.scalar_type() == at::kLong || target.scalar_type() == at::kByte,
      name, ": expected a target of scalar type Long but found ",
      target.scalar_type());
}

inline void CheckMultiMarginLoss(const at::Tensor&, const at::Tensor& target,
                                 const at::Scalar&, const at::Scalar&,
                                 const std::optional<at::Tensor>&, int64_t) {
  CheckIsLong("multi_margin_loss", target);
}

inline void CheckWhere(const at::Tensor& condition, const at::Tensor&,
                       const at::Tensor&) {
  TORCH_CHECK(condition.scalar_type() == at::kBool ||
                  condition.scalar_type() == at::kByte,
              "where expected condition to be a boolean tensor, but got a "
              "tensor with dtype ",
              condition.scalar_type());
}

inline void CheckMask(const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_fill_ only supports boolean masks, but got mask with "
              "dtype ",
              mask.scalar_type());
}

inline void CheckMaskedFillOfNumber(const at::Tensor& self,
                                    const at::Tensor& mask,
                                    const at::Scalar& value) {
  CheckMask(mask);
  AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND3(at::kBool, at::kHalf, at::kBFloat16,
                                         self.scalar_type(), "masked_fill_",
                                         [&] { value.to<scalar_t>(); });
}

inline void CheckEye(c10::SymInt n, c10::SymInt m, at::Tensor&) {
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
}

inline void CheckMaskedFill(const at::Tensor&, const at::Tensor& mask,
                            const at::Tensor& value) {
  CheckMask(mask);
  TORCH_CHECK(value.dim() == 0,
              "masked_fill_ only supports a 0-dimensional value tensor, but "
              "got tensor with ",
              value.dim(), " dimension(s).");
}

inline void CheckTopk(const at::Tensor& self, c10::SymInt k, int64_t dim,
                      bool largest, bool sorted) {
  at::meta::topk(self, k.expect_int(), dim, largest, sorted);
}

inline void CheckKthvalue(const at::Tensor& self, c10::SymInt k, int64_t dim,
                          bool) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.dim() == 0 ? 1 : self.size(wrapped);
  TORCH_CHECK(k >= 1 && k <= size,
              "kthvalue(): selected number k out of range ", "for dimension ",
              wrapped);
}

inline void CheckRoll(const at::Tensor&, c10::SymIntArrayRef shifts,
                      at::IntArrayRef dims) {
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK(
      shifts.size() == dims.size() || (dims.empty() && shifts.size() == 1),
      "shifts and dimensions must align. shifts: ", shifts.size(),
      ", dims:", dims.size());
}

inline void CheckTrace(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2,
              "trace: expected a matrix, but got tensor with "
              "dim ",
              self.dim());
}

inline void CheckTCopy(const at::Tensor& self) {
  TORCH_CHECK(self.dim() <= 2,
              "t() expects a tensor with <= 2 dimensions, but "
              "self is ",
              self.dim(), "D");
}

inline void CheckViewCopy(const at::Tensor& self, c10::SymIntArrayRef size) {
  at::infer_size_dv(size, self.sym_numel());
}

inline void CheckEmbedding(const at::Tensor& weight, const at::Tensor& indices,
                           c10::SymInt, bool, bool) {
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  TORCH_CHECK(
      indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt,
      "Expected tensor for argument #1 'indices' to have one of the "
      "following scalar types: Long, Int; but got ",
      indices.scalar_type(), " instead");
}

inline void CheckMultinomial(const at::Tensor& self, c10::SymInt num_samples,
                             bool replacement, std::optional<at::Generator>) {
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2,
              "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ",
      self.scalar_type());
  TORCH_CHECK(num_samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(replacement || num_samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without "
              "replacement");
}

inline void CheckIndexSelect(const at::Tensor& self, int64_t dim,
                             const at::Tensor& index) {
  at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(index.dim() <= 1,
                    "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(
      index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
      "index_select(): Expected dtype int32 or int64 for index");
}

inline void CheckSoftshrink(const at::Tensor& self, const at::Scalar& lambda) {
  at::meta::softshrink(self, lambda);
  TORCH_CHECK(lambda.toDouble() >= 0,
              "lambda must be greater or equal to 0, but found to be ",
              lambda.toDouble(), ".");
}

inline void CheckAvgPool2d(const at::Tensor& self, at::IntArrayRef kernel,
                           at::IntArrayRef stride, at::IntArrayRef padding,
                           bool ceil_mode, bool count_include_pad,
                           std::optional<int64_t> divisor) {
  CheckPool("avg_pool", kernel, stride, padding);
  at::meta::avg_pool2d(self, kernel, stride, padding, ceil_mode,
                       count_include_pad, divisor);
  TORCH_CHECK(!divisor || *divisor != 0, "divisor must be not zero");
}

inline void CheckAvgPool3d(const at::Tensor& self, at::IntArrayRef kernel,
                           at::IntArrayRef stride, at::IntArrayRef padding,
                           bool ceil_mode, bool count_include_pad,
                           std::optional<int64_t> divisor) {
  CheckPool("avg_pool", kernel, stride, padding);
  at::meta::avg_pool3d(self, kernel, stride, padding, ceil_mode,
                       count_include_pad, divisor);
  TORCH_CHECK(!divisor || *divisor != 0, "divisor must be not zero");
}

inline void CheckMaxPool2d(const at::Tensor& self, at::IntArrayRef kernel,
                           at::IntArrayRef stride, at::IntArrayRef padding,
                           at::IntArrayRef dilation, bool ceil_mode) {
  CheckPool("max_pool", kernel, stride, padding);
  at::meta::max_pool2d_with_indices(self, kernel, stride, padding, dilation,
                                    ceil_mode);
}

inline void CheckRandom(at::Tensor&, int64_t from, std::optional<int64_t> to,
                        std::optional<at::Generator>) {
  TORCH_CHECK(!to || from < *to,
              "random_ expects 'from' to be less than 'to', but got from=",
              from, " >= to=", to.value_or(0));
}

inline void CheckRandomTo(at::Tensor&, int64_t to,
                          std::optional<at::Generator>) {
  TORCH_CHECK(to > 0,
              "random_ expects 'from' to be less than 'to', but got "
              "from=0 >= to=",
              to);
}

inline void CheckUniform(at::Tensor&, double from, double to,
                         std::optional<at::Generator>) {
  TORCH_CHECK(from <= to,
              "uniform_ expects to return a [from, to) range, but found from=",
              from, " > to=", to);
}

inline void CheckPut(at::Tensor&, const at::Tensor& index,
                     const at::Tensor& source, bool) {
  TORCH_CHECK_INDEX(index.numel() == source.numel(),
                    "put_(): Expected source and index to have the same number "
                    "of elements, but got source with ",
                    source.numel(), " elements, index with ", index.numel());
}

inline void RegisterCallChecks(torch::Library& m) {
#define TORCH_XLA_EXT_CHECK(name, overload)                                 \
  CheckedCall<at::_ops::overload, static_cast<at::_ops::overload::schema*>( \
                                      &at::meta::name)>::Register(m);
  // PyTorch's functions for meta tensors in C++, of which there is one for each
  // operator of upstream's that PyTorch has a structured kernel for. `index` is
  // not among them: its one computes the indices of a mask. The functions that
  // PyTorch has in Python take 50 to 650 microseconds.
  TORCH_XLA_EXT_CHECK(_log_softmax_backward_data, _log_softmax_backward_data)
  TORCH_XLA_EXT_CHECK(_log_softmax, _log_softmax)
  TORCH_XLA_EXT_CHECK(_softmax_backward_data, _softmax_backward_data)
  TORCH_XLA_EXT_CHECK(_softmax, _softmax)
  TORCH_XLA_EXT_CHECK(acos, acos)
  TORCH_XLA_EXT_CHECK(acosh, acosh)
  TORCH_XLA_EXT_CHECK(adaptive_max_pool2d_backward,
                      adaptive_max_pool2d_backward)
  TORCH_XLA_EXT_CHECK(adaptive_max_pool2d, adaptive_max_pool2d)
  TORCH_XLA_EXT_CHECK(add, add_Tensor)
  TORCH_XLA_EXT_CHECK(addcmul, addcmul)
  TORCH_XLA_EXT_CHECK(all, all_dim)
  TORCH_XLA_EXT_CHECK(all, all)
  TORCH_XLA_EXT_CHECK(amax, amax)
  TORCH_XLA_EXT_CHECK(amin, amin)
  TORCH_XLA_EXT_CHECK(any, any_dim)
  TORCH_XLA_EXT_CHECK(any, any)
  TORCH_XLA_EXT_CHECK(argmax, argmax)
  TORCH_XLA_EXT_CHECK(argmin, argmin)
  TORCH_XLA_EXT_CHECK(asin, asin)
  TORCH_XLA_EXT_CHECK(asinh, asinh)
  TORCH_XLA_EXT_CHECK(atan2, atan2)
  TORCH_XLA_EXT_CHECK(atan, atan)
  TORCH_XLA_EXT_CHECK(atanh, atanh)
  TORCH_XLA_EXT_CHECK(avg_pool2d_backward, avg_pool2d_backward)
  TORCH_XLA_EXT_CHECK(avg_pool3d_backward, avg_pool3d_backward)
  TORCH_XLA_EXT_CHECK(bitwise_and, bitwise_and_Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_left_shift, bitwise_left_shift_Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_not, bitwise_not)
  TORCH_XLA_EXT_CHECK(bitwise_or, bitwise_or_Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_right_shift, bitwise_right_shift_Tensor)
  TORCH_XLA_EXT_CHECK(bitwise_xor, bitwise_xor_Tensor)
  TORCH_XLA_EXT_CHECK(cat, cat)
  TORCH_XLA_EXT_CHECK(ceil, ceil)
  TORCH_XLA_EXT_CHECK(clamp_max, clamp_max)
  TORCH_XLA_EXT_CHECK(clamp_max, clamp_max_Tensor)
  TORCH_XLA_EXT_CHECK(clamp, clamp)
  TORCH_XLA_EXT_CHECK(clamp, clamp_Tensor)
  TORCH_XLA_EXT_CHECK(clamp_min, clamp_min)
  TORCH_XLA_EXT_CHECK(clamp_min, clamp_min_Tensor)
  TORCH_XLA_EXT_CHECK(cos, cos)
  TORCH_XLA_EXT_CHECK(cosh, cosh)
  TORCH_XLA_EXT_CHECK(cumprod, cumprod)
  TORCH_XLA_EXT_CHECK(cumsum, cumsum)
  TORCH_XLA_EXT_CHECK(div, div_Tensor)
  TORCH_XLA_EXT_CHECK(div, div_Tensor_mode)
  TORCH_XLA_EXT_CHECK(elu_backward, elu_backward)
  TORCH_XLA_EXT_CHECK(eq, eq_Scalar)
  TORCH_XLA_EXT_CHECK(eq, eq_Tensor)
  TORCH_XLA_EXT_CHECK(erf, erf)
  TORCH_XLA_EXT_CHECK(erfc, erfc)
  TORCH_XLA_EXT_CHECK(erfinv, erfinv)
  TORCH_XLA_EXT_CHECK(exp, exp)
  TORCH_XLA_EXT_CHECK(expm1, expm1)
  TORCH_XLA_EXT_CHECK(floor, floor)
  TORCH_XLA_EXT_CHECK(fmod, fmod_Tensor)
  TORCH_XLA_EXT_CHECK(frac, frac)
  TORCH_XLA_EXT_CHECK(gather, gather)
  TORCH_XLA_EXT_CHECK(ge, ge_Scalar)
  TORCH_XLA_EXT_CHECK(ge, ge_Tensor)
  TORCH_XLA_EXT_CHECK(gelu_backward, gelu_backward)
  TORCH_XLA_EXT_CHECK(gt, gt_Scalar)
  TORCH_XLA_EXT_CHECK(gt, gt_Tensor)
  TORCH_XLA_EXT_CHECK(hardshrink_backward, hardshrink_backward)
  TORCH_XLA_EXT_CHECK(hardsigmoid_backward, hardsigmoid_backward)
  TORCH_XLA_EXT_CHECK(index_add, index_add)
  TORCH_XLA_EXT_CHECK(isneginf, isneginf)
  TORCH_XLA_EXT_CHECK(le, le_Scalar)
  TORCH_XLA_EXT_CHECK(le, le_Tensor)
  TORCH_XLA_EXT_CHECK(leaky_relu_backward, leaky_relu_backward)
  TORCH_XLA_EXT_CHECK(lerp, lerp_Scalar)
  TORCH_XLA_EXT_CHECK(lerp, lerp_Tensor)
  TORCH_XLA_EXT_CHECK(linalg_inv_ex, linalg_inv_ex)
  TORCH_XLA_EXT_CHECK(linalg_vector_norm, linalg_vector_norm)
  TORCH_XLA_EXT_CHECK(log10, log10)
  TORCH_XLA_EXT_CHECK(log1p, log1p)
  TORCH_XLA_EXT_CHECK(log2, log2)
  TORCH_XLA_EXT_CHECK(log, log)
  TORCH_XLA_EXT_CHECK(lt, lt_Scalar)
  TORCH_XLA_EXT_CHECK(lt, lt_Tensor)
  TORCH_XLA_EXT_CHECK(max_pool2d_with_indices_backward,
                      max_pool2d_with_indices_backward)
  TORCH_XLA_EXT_CHECK(maximum, maximum)
  TORCH_XLA_EXT_CHECK(minimum, minimum)
  TORCH_XLA_EXT_CHECK(mse_loss, mse_loss)
  TORCH_XLA_EXT_CHECK(mul, mul_Tensor)
  TORCH_XLA_EXT_CHECK(ne, ne_Scalar)
  TORCH_XLA_EXT_CHECK(ne, ne_Tensor)
  TORCH_XLA_EXT_CHECK(neg, neg)
  TORCH_XLA_EXT_CHECK(norm, norm_ScalarOpt_dim_dtype)
  TORCH_XLA_EXT_CHECK(norm, norm_ScalarOpt_dim)
  TORCH_XLA_EXT_CHECK(pow, pow_Tensor_Tensor)
  TORCH_XLA_EXT_CHECK(pow, pow_Scalar)
  TORCH_XLA_EXT_CHECK(pow, pow_Tensor_Scalar)
  TORCH_XLA_EXT_CHECK(prod, prod_dim_int)
  TORCH_XLA_EXT_CHECK(reciprocal, reciprocal)
  TORCH_XLA_EXT_CHECK(remainder, remainder_Tensor)
  TORCH_XLA_EXT_CHECK(round, round)
  TORCH_XLA_EXT_CHECK(rsqrt, rsqrt)
  TORCH_XLA_EXT_CHECK(scatter_add, scatter_add)
  TORCH_XLA_EXT_CHECK(scatter, scatter_src)
  TORCH_XLA_EXT_CHECK(scatter, scatter_value)
  TORCH_XLA_EXT_CHECK(scatter, scatter_reduce)
  TORCH_XLA_EXT_CHECK(scatter, scatter_value_reduce)
  TORCH_XLA_EXT_CHECK(scatter_reduce, scatter_reduce_two)
  TORCH_XLA_EXT_CHECK(sgn, sgn)
  TORCH_XLA_EXT_CHECK(sigmoid_backward, sigmoid_backward)
  TORCH_XLA_EXT_CHECK(sigmoid, sigmoid)
  TORCH_XLA_EXT_CHECK(sign, sign)
  TORCH_XLA_EXT_CHECK(silu_backward, silu_backward)
  TORCH_XLA_EXT_CHECK(sin, sin)
  TORCH_XLA_EXT_CHECK(sinh, sinh)
  TORCH_XLA_EXT_CHECK(softplus_backward, softplus_backward)
  TORCH_XLA_EXT_CHECK(softshrink_backward, softshrink_backward)
  TORCH_XLA_EXT_CHECK(smooth_l1_loss, smooth_l1_loss)
  TORCH_XLA_EXT_CHECK(sort, sort_stable)
  TORCH_XLA_EXT_CHECK(sqrt, sqrt)
  TORCH_XLA_EXT_CHECK(sub, sub_Tensor)
  TORCH_XLA_EXT_CHECK(sum, sum_dim_IntList)
  TORCH_XLA_EXT_CHECK(tan, tan)
  TORCH_XLA_EXT_CHECK(tanh_backward, tanh_backward)
  TORCH_XLA_EXT_CHECK(tanh, tanh)
  TORCH_XLA_EXT_CHECK(threshold_backward, threshold_backward)
  TORCH_XLA_EXT_CHECK(threshold, threshold)
  TORCH_XLA_EXT_CHECK(triangular_solve, triangular_solve)
  TORCH_XLA_EXT_CHECK(tril, tril)
  TORCH_XLA_EXT_CHECK(triu, triu)
  TORCH_XLA_EXT_CHECK(trunc, trunc)
  TORCH_XLA_EXT_CHECK(xlogy, xlogy_Tensor)
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(overload, function) \
  CheckedCall<at::_ops::overload, &function>::Register(m);
  TORCH_XLA_EXT_CHECK(addmm, CheckAddmm)
  TORCH_XLA_EXT_CHECK(avg_pool2d, CheckAvgPool2d)
  TORCH_XLA_EXT_CHECK(avg_pool3d, CheckAvgPool3d)
  TORCH_XLA_EXT_CHECK(baddbmm, CheckBaddbmm)
  TORCH_XLA_EXT_CHECK(bmm, CheckBmm)
  TORCH_XLA_EXT_CHECK(convolution_overrideable, CheckConvolution)
  TORCH_XLA_EXT_CHECK(dot, CheckDot)
  TORCH_XLA_EXT_CHECK(embedding, CheckEmbedding)
  TORCH_XLA_EXT_CHECK(eye_m_out, CheckEye)
  TORCH_XLA_EXT_CHECK(index_copy, CheckIndexCopy)
  TORCH_XLA_EXT_CHECK(index_select, CheckIndexSelect)
  TORCH_XLA_EXT_CHECK(kthvalue, CheckKthvalue)
  TORCH_XLA_EXT_CHECK(masked_fill_Scalar, CheckMaskedFillOfNumber)
  TORCH_XLA_EXT_CHECK(masked_fill_Tensor, CheckMaskedFill)
  TORCH_XLA_EXT_CHECK(max_dim, CheckMax)
  TORCH_XLA_EXT_CHECK(max_pool2d_with_indices, CheckMaxPool2d)
  TORCH_XLA_EXT_CHECK(min_dim, CheckMin)
  TORCH_XLA_EXT_CHECK(mm, CheckMm)
  TORCH_XLA_EXT_CHECK(multinomial, CheckMultinomial)
  TORCH_XLA_EXT_CHECK(mv, CheckMv)
  TORCH_XLA_EXT_CHECK(put_, CheckPut)
  TORCH_XLA_EXT_CHECK(random__from, CheckRandom)
  TORCH_XLA_EXT_CHECK(random__to, CheckRandomTo)
  TORCH_XLA_EXT_CHECK(roll, CheckRoll)
  TORCH_XLA_EXT_CHECK(softshrink, CheckSoftshrink)
  TORCH_XLA_EXT_CHECK(t_copy, CheckTCopy)
  TORCH_XLA_EXT_CHECK(topk, CheckTopk)
  TORCH_XLA_EXT_CHECK(trace, CheckTrace)
  TORCH_XLA_EXT_CHECK(uniform_, CheckUniform)
  TORCH_XLA_EXT_CHECK(view_copy, CheckViewCopy)
  TORCH_XLA_EXT_CHECK(where_self, CheckWhere)
#undef TORCH_XLA_EXT_CHECK
#define TORCH_XLA_EXT_CHECK(name) \
  CheckedCall<at::_ops::name, &OfFractions<&at::meta::name>::Call>::Register(m);
  TORCH_XLA_EXT_CHECK(elu)
  TORCH_XLA_EXT_CHECK(gelu)
  TORCH_XLA_EXT_CHECK(glu)
  TORCH_XLA_EXT_CHECK(hardshrink)
  TORCH_XLA_EXT_CHECK(hardsigmoid)
  TORCH_XLA_EXT_CHECK(leaky_relu)
  TORCH_XLA_EXT_CHECK(mish)
  TORCH_XLA_EXT_CHECK(silu)
  TORCH_XLA_EXT_CHECK(softplus)
#undef TORCH_XLA_EXT_CHECK
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_CALL_CHECKS_H_
