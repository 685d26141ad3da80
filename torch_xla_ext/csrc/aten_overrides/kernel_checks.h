// What PyTorch's kernels check of a call, and their functions for meta tensors
// do not: functions of an operator's arguments.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_KERNEL_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_KERNEL_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/MetaFunctions.h>
#include <ATen/WrapDimUtils.h>

#include <optional>

#include "torch_xla_ext/csrc/aten_overrides/pooling.h"

namespace torch_xla_ext::aten_overrides {

inline void CheckSameType(const char* name, const at::Tensor& a,
                          const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), name,
              ": expected both operands to have the same dtype, but got: ",
              a.scalar_type(), " != ", b.scalar_type());
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
  CheckSameType("mm", self, other);
}

inline void CheckBmm(const at::Tensor& self, const at::Tensor& other) {
  at::meta::bmm(self, other);
  CheckSameType("bmm", self, other);
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

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_KERNEL_CHECKS_H_
