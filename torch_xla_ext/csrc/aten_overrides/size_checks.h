// Checks of sizes and memory formats that PyTorch's kernels make of a call, but
// their functions for meta tensors do not: functions of an operator's
// arguments.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SIZE_CHECKS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SIZE_CHECKS_H_

#include <ATen/ATen.h>
#include <ATen/CompositeExplicitAutogradFunctions.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MetaFunctions.h>
#include <ATen/OpMathType.h>
#include <ATen/WrapDimUtils.h>

#include <optional>
#include <utility>

namespace torch_xla_ext::aten_overrides {

// PyTorch's views, which check their arguments, also of a meta tensor.
namespace composite = at::compositeexplicitautograd;

inline void CheckBroadcast(const at::Tensor& self, const at::Tensor& other) {
  at::infer_size(self.sizes(), other.sizes());
}

inline void CheckBroadcastWeight(const at::Tensor& self,
                                 const at::Tensor& target,
                                 const std::optional<at::Tensor>& weight) {
  TORCH_CHECK(self.sizes() == target.sizes(), "Target size (", target.sizes(),
              ") must be the same as input size (", self.sizes(), ")");
  if (weight && weight->defined()) CheckBroadcast(self, *weight);
}

inline void CheckWeights(const at::Tensor& self, const at::Tensor& target,
                         const std::optional<at::Tensor>& weight,
                         const std::optional<at::Tensor>& pos_weight) {
  CheckBroadcastWeight(self, target, weight);
  if (pos_weight && pos_weight->defined()) CheckBroadcast(self, *pos_weight);
}

// Whether a tensor that is added to a result can be expanded to its sizes.
inline void CheckAdded(const at::Tensor& self, at::IntArrayRef sizes) {
  TORCH_CHECK(self.dim() <= static_cast<int64_t>(sizes.size()), "a tensor of ",
              self.sizes(), " cannot be added to a result of ", sizes,
              ", which has fewer dimensions");
  at::inferExpandGeometry(self.sizes(), self.strides(), sizes);
}

// Throws unless a type has the number, as PyTorch's kernels do for integers,
// and for an imaginary part.
inline void CheckNumber(at::ScalarType type, const at::Scalar& number) {
  AT_DISPATCH_V2(type, "number", AT_WRAP([&] { number.to<scalar_t>(); }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), at::kBool, at::kHalf,
                 at::kBFloat16, AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                 AT_EXPAND(AT_FLOAT8_TYPES));
}

// The same for a number with which PyTorch computes, for 16-bit floats as
// float32.
inline void CheckFactor(at::ScalarType type, const at::Scalar& number) {
  CheckNumber(at::toOpMathType(type), number);
}

inline void CheckOuterProduct(const at::Tensor& self, const at::Tensor& vec1,
                              const at::Tensor& vec2, const at::Scalar& beta,
                              const at::Scalar& alpha) {
  const bool is_integral =
      at::isIntegralType(self.scalar_type(), /*includeBool=*/true) &&
      at::isIntegralType(vec1.scalar_type(), /*includeBool=*/true) &&
      at::isIntegralType(vec2.scalar_type(), /*includeBool=*/true);
  TORCH_CHECK(!is_integral || (beta.isIntegral(/*includeBool=*/true) &&
                               alpha.isIntegral(/*includeBool=*/true)),
              "addr: for integers, beta and alpha must not be floating point "
              "numbers, but are ",
              beta, " and ", alpha);
  TORCH_CHECK(vec1.dim() == 1 && vec2.dim() == 1,
              "addr: Expected 1-D argument vec1 and vec2, but got ", vec1.dim(),
              "-D and ", vec2.dim(), "-D");
  CheckAdded(self, {vec1.size(0), vec2.size(0)});
  const at::ScalarType type =
      at::promoteTypes(self.scalar_type(), at::result_type(vec1, vec2));
  CheckFactor(type, beta);
  CheckFactor(type, alpha);
}

inline void CheckMemoryFormat(int64_t rank,
                              std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(format != at::MemoryFormat::ChannelsLast || rank == 4,
              "required rank 4 tensor to use channels_last format");
  TORCH_CHECK(format != at::MemoryFormat::ChannelsLast3d || rank == 5,
              "required rank 5 tensor to use channels_last_3d format");
}

inline void CheckClone(const at::Tensor& self,
                       std::optional<at::MemoryFormat> format) {
  CheckMemoryFormat(self.dim(), format);
}

inline void CheckToCopy(const at::Tensor& self, std::optional<at::ScalarType>,
                        std::optional<at::Layout>, std::optional<at::Device>,
                        std::optional<bool>, bool,
                        std::optional<at::MemoryFormat> format) {
  CheckMemoryFormat(self.dim(), format);
}

inline void CheckSizes(c10::SymIntArrayRef sizes) {
  for (const c10::SymInt& size : sizes) {
    TORCH_CHECK(size.is_symbolic() || size.as_int_unchecked() >= 0,
                "Trying to create tensor with negative dimension ", size, ": ",
                sizes);
  }
}

inline void CheckEmpty(c10::SymIntArrayRef sizes, std::optional<at::ScalarType>,
                       std::optional<at::Layout>, std::optional<at::Device>,
                       std::optional<bool>,
                       std::optional<at::MemoryFormat> format) {
  CheckSizes(sizes);
  CheckMemoryFormat(static_cast<int64_t>(sizes.size()), format);
}

inline void CheckStack(at::TensorList tensors, int64_t dim) {
  TORCH_CHECK(!tensors.empty(), "stack expects a non-empty TensorList");
  at::maybe_wrap_dim(dim, tensors[0].dim() + 1);
  for (size_t i = 1; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].sizes() == tensors[0].sizes(),
                "stack expects each tensor to be equal size, but got ",
                tensors[0].sizes(), " at entry 0 and ", tensors[i].sizes(),
                " at entry ", i);
  }
}

inline void CheckConstantPad(const at::Tensor& self, c10::SymIntArrayRef pad,
                             const at::Scalar& value) {
  const int64_t length = static_cast<int64_t>(pad.size());
  TORCH_CHECK(length % 2 == 0,
              "Length of pad must be even but instead it equals ", length);
  TORCH_CHECK(length <= 2 * self.dim(),
              "Length of pad should be no more than twice the number of "
              "dimensions of the input. Pad length is ",
              length, " while the input has ", self.dim(), " dimensions.");
  CheckNumber(self.scalar_type(), value);
}

// PyTorch's padding accepts an empty batch, and no other dimension of size 0.
inline void CheckPadded(const at::Tensor& self, c10::SymIntArrayRef padding) {
  const int64_t rank = static_cast<int64_t>(padding.size()) / 2 + 1;
  const bool has_batch = self.dim() == rank + 1;
  bool is_valid = has_batch || self.dim() == rank;
  for (int64_t i = has_batch ? 1 : 0; i < self.dim(); ++i) {
    is_valid = is_valid && self.size(i) != 0;
  }
  TORCH_CHECK(is_valid, "Expected ", rank, "D or ", rank + 1,
              "D (batch mode) tensor with possibly 0 batch size and other "
              "non-zero dimensions for input, but got: ",
              self.sizes());
}

inline void CheckReflectionPad(const at::Tensor& self,
                               c10::SymIntArrayRef padding) {
  CheckPadded(self, padding);
  for (size_t i = 0; i < padding.size(); ++i) {
    const int64_t dim = static_cast<int64_t>(i) / 2;
    TORCH_CHECK(padding[i] < self.size(-1 - dim),
                "Padding size should be less than the corresponding input "
                "dimension, but got: padding ",
                padding, " at dimension ", self.dim() - 1 - dim, " of input ",
                self.sizes());
  }
}

// An operator that reads or writes at indices along a dimension.
inline void CheckIndexed(const char* name, const at::Tensor& self, int64_t dim,
                         const at::Tensor& index) {
  if (self.dim() == 0 || index.numel() == 0) return;
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK_INDEX(self.size(wrapped) != 0, name, ": indices of dimension ",
                    wrapped, " are out of bounds, because its size is 0");
}

inline void CheckGather(const char* name, const at::Tensor& self, int64_t dim,
                        const at::Tensor& index, bool sparse_grad) {
  at::meta::gather(self, dim, index, sparse_grad);
  CheckIndexed(name, self, dim, index);
}

// The part of a tensor that another one replaces.
inline void CheckReplaced(const at::Tensor& src, at::IntArrayRef part) {
  TORCH_CHECK(src.sizes() == part,
              "expected src to have a size equal to the slice of self. src "
              "size = ",
              src.sizes(), ", slice size = ", part);
}

inline void CheckSelectScatter(const at::Tensor& self, const at::Tensor& src,
                               int64_t dim, c10::SymInt index) {
  CheckReplaced(src,
                composite::select_symint(self, dim, std::move(index)).sizes());
}

inline void CheckSliceScatter(const at::Tensor& self, const at::Tensor& src,
                              int64_t dim, std::optional<c10::SymInt> start,
                              std::optional<c10::SymInt> end,
                              c10::SymInt step) {
  if ((start && start->is_symbolic()) || (end && end->is_symbolic()) ||
      step.is_symbolic()) {
    return;
  }
  CheckReplaced(src, composite::slice_symint(self, dim, std::move(start),
                                             std::move(end), std::move(step))
                         .sizes());
}

inline void CheckDiagonalScatter(const at::Tensor& self, const at::Tensor& src,
                                 int64_t offset, int64_t dim1, int64_t dim2) {
  CheckReplaced(src, composite::diagonal(self, offset, dim1, dim2).sizes());
}

// Whether the elements of `as_strided` are elements of `self`.
inline void CheckStrided(const at::Tensor& self, at::IntArrayRef size,
                         at::IntArrayRef stride, int64_t offset) {
  TORCH_CHECK(size.size() == stride.size(), "as_strided: size has ",
              size.size(), " dimensions and stride ", stride.size());
  int64_t last = offset;
  bool is_empty = false;
  for (size_t i = 0; i < size.size(); ++i) {
    TORCH_CHECK(stride[i] >= 0, "as_strided: a stride is ", stride[i],
                ", but must not be negative");
    last += (size[i] - 1) * stride[i];
    is_empty |= size[i] == 0;
  }
  TORCH_CHECK(is_empty || (0 <= offset && last < self.numel()),
              "as_strided: size ", size, ", stride ", stride, " and offset ",
              offset, " reach element ", last, " of a tensor with ",
              self.numel(), " elements");
}

inline void CheckAsStridedScatter(const at::Tensor& self, const at::Tensor& src,
                                  c10::SymIntArrayRef size,
                                  c10::SymIntArrayRef stride,
                                  std::optional<c10::SymInt> offset) {
  const auto sizes = c10::asIntArrayRefSlowOpt(size);
  const auto strides = c10::asIntArrayRefSlowOpt(stride);
  if (!sizes || !strides || (offset && offset->is_symbolic())) return;
  CheckReplaced(src, *sizes);
  CheckStrided(self, *sizes, *strides, offset ? offset->expect_int() : 0);
}

inline void CheckAdaptivePool(const char* name, const at::Tensor& self,
                              c10::SymIntArrayRef output_size) {
  const int64_t spatial = static_cast<int64_t>(output_size.size());
  TORCH_CHECK(self.dim() == spatial + 1 || self.dim() == spatial + 2, name,
              ": expected an input of ", spatial + 1, " or ", spatial + 2,
              " dimensions, but got: ", self.sizes());
  for (int64_t i = 1; i <= spatial && i <= self.dim(); ++i) {
    TORCH_CHECK(self.size(-i) > 0, name,
                ": expected input to have non-zero size for non-batch "
                "dimensions, but input has sizes ",
                self.sizes());
  }
}

inline void CheckCholesky(const at::Tensor& self) {
  if (self.numel() == 0) return;
  TORCH_CHECK(self.dim() >= 2,
              "cholesky: The input tensor A must have at least 2 dimensions.");
  TORCH_CHECK(self.size(-1) == self.size(-2),
              "cholesky: A must be batches of square matrices, but they are ",
              self.size(-2), " by ", self.size(-1), " matrices");
}

inline void CheckClassWeights(const at::Tensor& self,
                              const std::optional<at::Tensor>& weight) {
  TORCH_CHECK(!weight || !weight->defined() ||
                  weight->scalar_type() == self.scalar_type(),
              "nll_loss: expected weights of the input's dtype, ",
              self.scalar_type(), ", but got ", weight->scalar_type());
}

inline void CheckNllLoss(const at::Tensor& self, const at::Tensor& target,
                         const std::optional<at::Tensor>& weight,
                         int64_t reduction, c10::SymInt ignore_index) {
  at::meta::nll_loss_forward_symint(self, target, weight, reduction,
                                    std::move(ignore_index));
  CheckClassWeights(self, weight);
}

inline void CheckNllLoss2d(const at::Tensor& self, const at::Tensor& target,
                           const std::optional<at::Tensor>& weight) {
  CheckClassWeights(self, weight);
  TORCH_CHECK(self.dim() == 4,
              "only batches of spatial inputs supported (4D tensors), but got "
              "input of size: ",
              self.sizes());
  TORCH_CHECK(target.dim() == 3,
              "only batches of spatial targets supported (3D tensors) but got "
              "targets of size: ",
              target.sizes());
  TORCH_CHECK(self.size(0) == target.size(0) &&
                  self.size(2) == target.size(1) &&
                  self.size(3) == target.size(2),
              "size mismatch (got input: ", self.sizes(),
              ", target: ", target.sizes(), ")");
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_SIZE_CHECKS_H_
