// Checks that PyTorch's kernels make of a call, but their functions for meta
// tensors do not: functions of an operator's arguments.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_KERNEL_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_KERNEL_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/MetaFunctions.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/WrapDimUtilsMulti.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <type_traits>

#include "torch_xla_ext/csrc/aten_overrides/dtype_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/pooling.h"
#include "torch_xla_ext/csrc/aten_overrides/size_checks.h"

namespace torch_xla_ext::aten_overrides {

inline void CheckSameType(const char* name, const at::Tensor& a,
                          const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), name,
              ": expected both operands to have the same dtype, but got: ",
              a.scalar_type(), " != ", b.scalar_type());
}

inline void CheckProduct(const char* name, const at::Tensor& a,
                         const at::Tensor& b) {
  CheckSameType(name, a, b);
  TORCH_CHECK(a.scalar_type() != at::kBool, name,
              ": not implemented for 'Bool': convert the tensors to integers "
              "or to a floating-point dtype");
}

// The operands of a product. torch_xla.experimental.xla_quantized_matmul
// multiplies floats by int8, which XLA computes correctly.
inline void CheckFactors(const char* name, const at::Tensor& a,
                         const at::Tensor& b) {
  const auto is_quantized = [](const at::Tensor& weight,
                               const at::Tensor& other) {
    return weight.scalar_type() == at::kChar && other.is_floating_point();
  };
  if (is_quantized(a, b) || is_quantized(b, a)) return;
  CheckProduct(name, a, b);
}

inline void CheckFractions(const char* name, const at::Tensor& self) {
  TORCH_CHECK(!at::isIntegralType(self.scalar_type(), /*includeBool=*/true),
              name, ": not implemented for '", self.scalar_type(),
              "': convert the tensor to a floating-point dtype");
}

inline void CheckGelu(const at::Tensor&, std::string_view approximate) {
  TORCH_CHECK(approximate == "none" || approximate == "tanh",
              "approximate argument must be either none or tanh.");
}

inline void CheckRelu(const at::Tensor& self) {
  TORCH_CHECK(self.scalar_type() != at::kBool,
              "Boolean inputs not supported for relu");
  TORCH_CHECK(!self.is_complex(), "relu: not supported for complex numbers");
}

inline void CheckWholeExtremum(const char* name, const at::Tensor& self) {
  TORCH_CHECK(self.numel() > 0, name,
              "(): Expected reduction dim to be specified for input.numel() == "
              "0. Specify the reduction dim with the 'dim' argument.");
  TORCH_CHECK(!self.is_complex(), name, ": not supported for complex numbers");
}

inline void CheckCumulativeExtremum(const at::Tensor& self, int64_t dim) {
  at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(!self.is_complex(), "not implemented for complex numbers");
}

template <auto kMeta>
void CheckCumulative(const at::Tensor& self, int64_t dim,
                     std::optional<at::ScalarType> dtype) {
  kMeta(self, dim, dtype);
  TORCH_CHECK(dtype != at::kBool, "not implemented for 'Bool'");
}

template <typename Other>
void CheckShift(const at::Tensor& self, const Other& other) {
  if constexpr (std::is_same_v<Other, at::Tensor>) CheckBroadcast(self, other);
  const at::ScalarType type = at::result_type(self, other);
  TORCH_CHECK(at::isIntegralType(type, /*includeBool=*/false),
              "shift: not implemented for '", type, "'");
}

inline void CheckSubOfNumber(const at::Tensor& self, const at::Scalar& other) {
  TORCH_CHECK(self.scalar_type() != at::kBool && !other.isBoolean(),
              "Subtraction, the `-` operator, with a bool tensor is not "
              "supported. If you are trying to invert a mask, use the `~` or "
              "`logical_not()` operator instead.");
}

inline void CheckAbs(const at::Tensor& self) {
  TORCH_CHECK(self.scalar_type() != at::kBool, "abs: not implemented for '",
              self.scalar_type(), "'");
}

inline void CheckFloorDivide(const at::Tensor& self, const at::Tensor& other) {
  CheckBroadcast(self, other);
  TORCH_CHECK(at::result_type(self, other) != at::kBool,
              "floor_divide: not implemented for 'Bool'");
}

// `kMeta` of operators of integers and booleans.
template <auto kMeta>
void CheckBitwise(const char* name, const at::Tensor& self,
                  const at::Tensor& other) {
  kMeta(self, other);
  const at::ScalarType type = at::result_type(self, other);
  TORCH_CHECK(at::isIntegralType(type, /*includeBool=*/true), name,
              ": not implemented for '", type, "'");
}

inline void CheckBinaryCrossEntropy(const at::Tensor& self,
                                    const at::Tensor& target) {
  TORCH_CHECK(target.scalar_type() == self.scalar_type(), "Found dtype ",
              target.scalar_type(), " but expected ", self.scalar_type());
}

inline void CheckBinaryCrossEntropyBackward(const at::Tensor&,
                                            const at::Tensor& self,
                                            const at::Tensor& target) {
  CheckBinaryCrossEntropy(self, target);
}

inline void CheckComplex(const at::Tensor& a, const at::Tensor& b) {
  const auto is_computed = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kFloat ||
           tensor.scalar_type() == at::kDouble ||
           tensor.scalar_type() == at::kHalf;
  };
  TORCH_CHECK(is_computed(a) && is_computed(b),
              "Expected both inputs to be Half, Float or Double tensors but "
              "got ",
              a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(a.scalar_type() == b.scalar_type(),
              "Expected object of scalar type ", a.scalar_type(),
              " but got scalar type ", b.scalar_type(), " for second argument");
  TORCH_CHECK_NOT_IMPLEMENTED(a.scalar_type() != at::kHalf,
                              "XLA has no complex numbers of 16 bits: convert "
                              "the tensors to float32");
}

inline void CheckBitwiseShift(const at::Tensor& self, const at::Tensor& other) {
  at::meta::bitwise_left_shift(self, other);
  CheckShift(self, other);
}

inline void CheckBitwiseNot(const at::Tensor& self) {
  at::meta::bitwise_not(self);
  TORCH_CHECK(at::isIntegralType(self.scalar_type(), /*includeBool=*/true),
              "bitwise_not: not implemented for '", self.scalar_type(), "'");
}

inline void CheckFill(at::Tensor&, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0,
              "fill_ only supports 0-dimension value tensor but got tensor "
              "with ",
              value.dim(), " dimensions.");
}

// Throws std::runtime_error even for a dimension that is out of range, as
// upstream does and its tests expect.
inline void CheckFlip(const at::Tensor& self, at::IntArrayRef dims) {
  const int64_t rank = std::max<int64_t>(self.dim(), 1);
  for (const int64_t dim : dims) {
    TORCH_CHECK(-rank <= dim && dim < rank,
                "Dimension out of range (expected to be in range of [", -rank,
                ", ", rank - 1, "], but got ", dim, ")");
  }
  at::dim_list_to_bitset(dims, self.dim());
}

inline void CheckRepeat(const at::Tensor& self, c10::SymIntArrayRef repeats) {
  TORCH_CHECK(static_cast<int64_t>(repeats.size()) >= self.dim(),
              "Number of dimensions of repeat dims can not be smaller than "
              "number of dimensions of tensor");
}

inline void CheckSoftmaxBackward(const char* name, const at::Tensor& grad,
                                 const at::Tensor& output) {
  TORCH_CHECK(grad.sizes() == output.sizes(), name,
              ": expected a gradient of the output's size, ", output.sizes(),
              ", but got one of ", grad.sizes());
  CheckSameType(name, grad, output);
}

inline void CheckViewAsComplex(const at::Tensor& self) {
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "view_as_complex is only supported for floating point tensors, "
              "but got a tensor of scalar type: ",
              self.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble,
      "XLA has no complex numbers of 16 bits: convert the tensor to float32");
  TORCH_CHECK(self.dim() > 0 && self.size(-1) == 2,
              "view_as_complex: expected a last dimension of size 2, but got: ",
              self.sizes());
}

inline void CheckViewAsReal(const at::Tensor& self) {
  TORCH_CHECK(self.is_complex(),
              "view_as_real is only supported for complex tensors, but got a "
              "tensor of scalar type: ",
              self.scalar_type());
}

inline void CheckPixelShuffle(const at::Tensor& self, int64_t factor) {
  TORCH_CHECK(self.dim() >= 3,
              "pixel_shuffle expects input to have at least 3 dimensions, but "
              "got input with ",
              self.dim(), " dimension(s)");
  TORCH_CHECK(factor > 0,
              "pixel_shuffle expects a positive upscale_factor, but got ",
              factor);
  TORCH_CHECK(self.size(-3) % (factor * factor) == 0,
              "pixel_shuffle expects its input's 'channel' dimension to be "
              "divisible by the square of upscale_factor, but "
              "input.size(-3)=",
              self.size(-3), " is not divisible by ", factor * factor);
}

inline void CheckTriangularSolve(const at::Tensor& self, const at::Tensor& a,
                                 bool upper, bool transpose,
                                 bool unitriangular) {
  at::meta::triangular_solve(self, a, upper, transpose, unitriangular);
  CheckFractions("triangular_solve", a);
}

inline void CheckCdist(const at::Tensor& x1, const at::Tensor& x2, double p) {
  TORCH_CHECK(at::isFloatingType(x1.scalar_type()) &&
                  at::isFloatingType(x2.scalar_type()),
              "cdist only supports floating-point dtypes, got: ",
              x1.scalar_type(), " and ", x2.scalar_type());
  TORCH_CHECK(p >= 0, "cdist only supports non-negative p values, got: ", p);
}

inline void CheckPow(const at::Tensor& self, const at::Scalar& exponent) {
  at::meta::pow(self, exponent);
  const at::ScalarType type = at::result_type(self, exponent);
  if (at::isIntegralType(type, /*includeBool=*/false)) {
    CheckNumber(type, exponent);
  }
}

inline void CheckThreshold(const at::Tensor& self, const at::Scalar& threshold,
                           const at::Scalar& value) {
  CheckFactor(self.scalar_type(), threshold);
  CheckFactor(self.scalar_type(), value);
}

// `kMeta` of addcdiv or addcmul.
template <auto kMeta>
void CheckWithProduct(const char* name, const at::Tensor& self,
                      const at::Tensor& tensor1, const at::Tensor& tensor2,
                      const at::Scalar& value) {
  const at::ScalarType type =
      kMeta(self, tensor1, tensor2, value).scalar_type();
  TORCH_CHECK(type != at::kBool, name,
              ": not implemented for 'Bool': convert the tensor to integers");
  CheckFactor(type, value);
}

inline void CheckSort(const at::Tensor& self, int64_t dim) {
  at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(!self.is_complex(), "sort: not supported for complex numbers");
}

inline void CheckFmodByNumber(const at::Tensor& self, const at::Scalar& other) {
  TORCH_CHECK(!self.is_complex() && !other.isComplex(),
              "fmod: not supported for complex numbers");
}

inline void CheckScatterReduce(const char* name, const at::Tensor& self,
                               int64_t dim, const at::Tensor& index,
                               const at::Tensor&, std::string_view reduce) {
  CheckIndexed(name, self, dim, index);
  TORCH_CHECK(!self.is_complex() || (reduce != "amax" && reduce != "amin"),
              name, ": ", reduce, " is not implemented for complex numbers");
}

inline void CheckHardtanh(const at::Tensor& self, const at::Scalar& min,
                          const at::Scalar& max) {
  TORCH_CHECK(self.scalar_type() != at::kByte ||
                  (min.toDouble() >= 0 && max.toDouble() >= 0),
              "cannot do hardtanh on an unsigned type with negative limits");
}

inline void CheckMvlgamma(const at::Tensor& self, int64_t p) {
  TORCH_CHECK(p >= 1, "p has to be greater than or equal to 1");
}

// Upstream's error is a RuntimeError, PyTorch's an IndexError.
inline void CheckExtremum(const char* name, const at::Tensor& self,
                          int64_t dim) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(self.dim() == 0 || self.size(wrapped) != 0, name,
                    "(): Expected reduction dim ", wrapped,
                    " to have non-zero size.");
  TORCH_CHECK(!self.is_complex(), name, ": not supported for complex numbers");
}

template <auto kMeta>
void CheckMatmul(const char* name, const at::Tensor& self,
                 const at::Tensor& other) {
  kMeta(self, other);
  CheckFactors(name, self, other);
}

inline void CheckMv(const at::Tensor& self, const at::Tensor& vec) {
  TORCH_CHECK(self.dim() == 2 && vec.dim() == 1 && self.size(1) == vec.size(0),
              "size mismatch, got input (", self.sizes(), "), vec (",
              vec.sizes(), ")");
  CheckProduct("mv", self, vec);
}

inline void CheckDot(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1,
              "1D tensors expected, but got ", self.dim(), "D and ",
              other.dim(), "D tensors");
  CheckProduct("dot", self, other);
  TORCH_CHECK(self.numel() == other.numel(),
              "inconsistent tensor size, expected tensor [", self.numel(),
              "] and src [", other.numel(),
              "] to have the same number of elements");
}

template <auto kMeta>
void CheckAddedMatmul(const char* name, const at::Tensor& self,
                      const at::Tensor& a, const at::Tensor& b,
                      const at::Scalar& beta, const at::Scalar& alpha) {
  CheckAdded(self, kMeta(self, a, b, beta, alpha).sizes());
  CheckProduct(name, a, b);
  CheckSameType(name, self, a);
  CheckFactor(self.scalar_type(), beta);
  CheckFactor(self.scalar_type(), alpha);
}

inline void CheckConvolution(const at::Tensor& input, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias,
                             c10::SymIntArrayRef stride,
                             c10::SymIntArrayRef padding,
                             c10::SymIntArrayRef dilation, bool transposed,
                             c10::SymIntArrayRef output_padding) {
  CheckSameType("convolution", input, weight);
  bool is_slow = transposed;
  for (const c10::SymInt& step : dilation) is_slow |= step > 1;
  const at::ScalarType type = input.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_slow || type == at::kLong || !at::isIntegralType(type, true),
      "convolution: not implemented for '", type,
      "' if it is transposed or dilated: convert the tensors to int64 or to a "
      "floating-point dtype");
  for (int64_t i = 2; i < weight.dim(); ++i) {
    TORCH_CHECK(weight.size(i) > 0,
                "kernel size should be greater than zero, but got a weight of ",
                weight.sizes());
  }
  if (bias && bias->defined()) CheckSameType("convolution", input, *bias);
  for (const c10::SymInt& step : dilation) {
    TORCH_CHECK(step > 0, "dilation should be greater than zero, but got ",
                dilation);
  }
  if (!transposed) return;
  for (size_t i = 0; i < output_padding.size(); ++i) {
    TORCH_CHECK(
        output_padding[i] < stride[i] || output_padding[i] < dilation[i],
        "output padding must be smaller than either stride or "
        "dilation, but got output padding ",
        output_padding, ", stride ", stride, " and dilation ", dilation);
    const int64_t dim = static_cast<int64_t>(i) + 2;
    const c10::SymInt size =
        (input.size(dim) - 1) * stride[i] - 2 * padding[i] +
        dilation[i] * (weight.size(dim) - 1) + output_padding[i] + 1;
    TORCH_CHECK(size > 0, "convolution: the output's size in dimension ", dim,
                " would be ", size, ", for an input of ", input.sizes(),
                ", a weight of ", weight.sizes(), " and padding ", padding);
  }
}

inline void CheckWhere(const at::Tensor& condition, const at::Tensor& self,
                       const at::Tensor& other) {
  TORCH_CHECK(condition.scalar_type() == at::kBool ||
                  condition.scalar_type() == at::kByte,
              "where expected condition to be a boolean tensor, but got a "
              "tensor with dtype ",
              condition.scalar_type());
  at::infer_size(at::infer_size(self.sizes(), other.sizes()),
                 condition.sizes());
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
  CheckBroadcast(self, mask);
  CheckNumber(self.scalar_type(), value);
}

inline void CheckEye(c10::SymInt n, c10::SymInt m) {
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
}

inline void CheckMaskedFill(const at::Tensor& self, const at::Tensor& mask,
                            const at::Tensor& value) {
  CheckMask(mask);
  CheckBroadcast(self, mask);
  TORCH_CHECK(value.dim() == 0,
              "masked_fill_ only supports a 0-dimensional value tensor, but "
              "got tensor with ",
              value.dim(), " dimension(s).");
}

inline void CheckTopk(const at::Tensor& self, c10::SymInt k, int64_t dim,
                      bool largest, bool sorted) {
  at::meta::topk(self, k.expect_int(), dim, largest, sorted);
  TORCH_CHECK(self.scalar_type() != at::kBool && !self.is_complex(),
              "topk: not implemented for '", self.scalar_type(), "'");
}

inline void CheckKthvalue(const at::Tensor& self, c10::SymInt k, int64_t dim) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.dim() == 0 ? 1 : self.size(wrapped);
  TORCH_CHECK(k >= 1 && k <= size,
              "kthvalue(): selected number k out of range ", "for dimension ",
              wrapped);
  TORCH_CHECK(self.scalar_type() != at::kBool && !self.is_complex(),
              "kthvalue: not implemented for '", self.scalar_type(), "'");
}

inline void CheckRoll(const at::Tensor& self, c10::SymIntArrayRef shifts,
                      at::IntArrayRef dims) {
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK(
      shifts.size() == dims.size() || (dims.empty() && shifts.size() == 1),
      "shifts and dimensions must align. shifts: ", shifts.size(),
      ", dims:", dims.size());
  for (const int64_t dim : dims) {
    at::maybe_wrap_dim(dim, self.dim(), /*wrap_scalar=*/false);
  }
}

inline void CheckTrace(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2,
              "trace: expected a matrix, but got tensor with "
              "dim ",
              self.dim());
}

inline void CheckSoftshrink(const at::Tensor& self, const at::Scalar& lambda) {
  at::meta::softshrink(self, lambda);
  TORCH_CHECK(lambda.toDouble() >= 0,
              "lambda must be greater or equal to 0, but found to be ",
              lambda.toDouble(), ".");
}

template <auto kMeta>
void CheckAvgPool(const at::Tensor& self, at::IntArrayRef kernel,
                  at::IntArrayRef stride, at::IntArrayRef padding,
                  bool ceil_mode, bool count_include_pad,
                  std::optional<int64_t> divisor) {
  CheckPool("avg_pool", kernel, stride, padding);
  kMeta(self, kernel, stride, padding, ceil_mode, count_include_pad, divisor);
  TORCH_CHECK(!divisor || *divisor != 0, "divisor must be not zero");
}

inline void CheckMaxPool2d(const at::Tensor& self, at::IntArrayRef kernel,
                           at::IntArrayRef stride, at::IntArrayRef padding,
                           at::IntArrayRef dilation, bool ceil_mode) {
  CheckPool("max_pool", kernel, stride, padding);
  at::meta::max_pool2d_with_indices(self, kernel, stride, padding, dilation,
                                    ceil_mode);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_KERNEL_CHECKS_H_
