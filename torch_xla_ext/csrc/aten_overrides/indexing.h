// Slices, views and copies.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INDEXING_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INDEXING_H_

#include <ATen/ExpandUtils.h>
#include <ATen/NativeFunctions.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/indexing_checks.h"
#include "torch_xla_ext/csrc/aten_overrides/masked_fill.h"
#include "torch_xla_ext/csrc/aten_overrides/strides.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// The upstream kernel refuses strides that it does not know, such as those of
// tensors without elements.
inline at::Tensor AsStrided(const at::Tensor& self, at::IntArrayRef size,
                            at::IntArrayRef stride,
                            std::optional<int64_t> storage_offset) {
  return c10::multiply_integers(size) == 0
             ? at::empty(size, self.options())
             : Upstream::as_strided(self, size, stride, storage_offset);
}

// torch.compile changes only the sizes of a tensor's stand-in. The upstream
// kernel fails if the stand-in shares its data.
inline const at::Tensor& AsStrided_(const at::Tensor& self,
                                    at::IntArrayRef size,
                                    at::IntArrayRef stride,
                                    std::optional<int64_t> storage_offset) {
  if (torch_xla::bridge::TryGetXlaTensor(self) == nullptr) {
    return at::native::as_strided__symint(self, c10::fromIntArrayRefSlow(size),
                                          c10::fromIntArrayRefSlow(stride),
                                          storage_offset);
  }
  return Upstream::as_strided_(self, size, stride, storage_offset);
}

using Indices = c10::List<std::optional<at::Tensor>>;

// The upstream kernels concatenate the indices, and fail if some are int32 and
// some int64, which those of a mask are.
inline Indices OfOneDtype(const Indices& indices) {
  bool is_mixed = false;
  for (const std::optional<at::Tensor> index : indices) {
    is_mixed |= index && index->defined() && index->scalar_type() != at::kInt;
  }
  if (!is_mixed) return indices;
  Indices result;
  for (std::optional<at::Tensor> index : indices) {
    if (index && index->defined() && index->scalar_type() == at::kInt) {
      index = index->to(at::kLong);
    }
    result.push_back(std::move(index));
  }
  return result;
}

inline at::Tensor Index(const at::Tensor& self, const Indices& indices) {
  return Upstream::index(self, OfOneDtype(indices));
}

inline at::Tensor& IndexPut_(at::Tensor& self, const Indices& indices,
                             const at::Tensor& values, bool accumulate) {
  // The dtype differs only if a mask is filled (indexing_checks.h).
  const bool is_own = values.scalar_type() == self.scalar_type();
  return Upstream::index_put_(
      self, OfOneDtype(WithoutMasks(self, indices, values)),
      is_own ? values : ValueOfMask(self, values), accumulate);
}

inline at::Tensor& IndexPutImpl_(at::Tensor& self, const Indices& indices,
                                 const at::Tensor& values, bool accumulate,
                                 bool /*unsafe*/) {
  return IndexPut_(self, indices, values, accumulate);
}

// The index of each selected element among the selected ones.
inline at::Tensor NumbersOfSelected(const at::Tensor& mask) {
  const at::Tensor counts = at::cumsum(mask.reshape({-1}), 0, at::kInt);
  return at::clamp_min(at::sub(counts, 1), 0).to(at::kLong);
}

// The upstream kernel uses dynamic shapes, which a sharded program cannot have.
inline at::Tensor MaskedScatter(const at::Tensor& self, const at::Tensor& mask,
                                const at::Tensor& source) {
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_scatter: mask must be of torch.bool, but is of ",
              mask.dtype());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(),
              "masked_scatter: expected self and source to have same dtypes "
              "but got ",
              self.dtype(), " and ", source.dtype());
  const auto sizes = at::infer_size(self.sizes(), mask.sizes());
  const at::Tensor whole = at::expand_copy(self, sizes);
  if (whole.numel() == 0) return whole;
  if (source.numel() == 0) {  // the gradient of a mask that selects nothing
    TORCH_CHECK(!at::any(mask).item<bool>(),
                "masked_scatter: source has no elements");
    return whole;
  }
  const at::Tensor selected = at::expand_copy(mask, sizes);
  const at::Tensor places =
      at::clamp_max(NumbersOfSelected(selected), source.numel() - 1);
  return at::where(
      selected,
      at::index_select(source.reshape({-1}), 0, places).reshape(sizes), whole);
}

// The destination of each element of a source of the shape `sizes`.
inline at::Tensor MaskedScatterBackward(const at::Tensor& grad_output,
                                        const at::Tensor& mask,
                                        at::IntArrayRef sizes) {
  const int64_t count = c10::multiply_integers(sizes);
  const at::Tensor selected =
      at::expand_copy(mask, grad_output.sizes()).reshape({-1});
  // One more element, for those that the mask does not select.
  const at::Tensor places = at::clamp_max(
      at::where(selected, NumbersOfSelected(selected), count), count);
  return at::slice_copy(
             at::scatter(at::zeros({count + 1}, grad_output.options()), 0,
                         places, grad_output.reshape({-1})),
             0, 0, count)
      .reshape(sizes);
}

// If the elements of a view are contiguous in memory, in some order of its
// dimensions: that order, from the outermost dimension to the innermost.
inline std::optional<std::vector<int64_t>> DenseOrder(at::IntArrayRef size,
                                                      at::IntArrayRef stride) {
  std::vector<int64_t> order(size.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return stride[a] > stride[b]; });
  int64_t expected = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    if (size[*dim] == 1) continue;
    if (stride[*dim] != expected) return std::nullopt;
    expected *= size[*dim];
  }
  return order;
}

// The `count` elements of `self` from `offset` on, in the shape `size`, whose
// dimensions follow one another in memory in this order.
inline at::Tensor DenseView(const at::Tensor& self, at::IntArrayRef size,
                            at::IntArrayRef order, int64_t offset,
                            int64_t count) {
  at::Tensor elements = self;
  if (count != self.numel()) {
    elements =
        at::slice_copy(at::view_copy(self, {-1}), 0, offset, offset + count);
  }
  std::vector<int64_t> size_in_memory, places(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    size_in_memory.push_back(size[order[i]]);
    places[order[i]] = static_cast<int64_t>(i);
  }
  return at::permute_copy(at::view_copy(elements, size_in_memory), places);
}

// The upstream kernel assumes a slice if the sizes fit one, so strides of 0 and
// of windows gave wrong elements.
inline at::Tensor AsStridedCopy(const at::Tensor& self, at::IntArrayRef size,
                                at::IntArrayRef stride,
                                std::optional<int64_t> storage_offset) {
  const int64_t offset = storage_offset.value_or(0);
  CheckStrided(self, size, stride, offset);
  const int64_t count = c10::multiply_integers(size);
  if (count == 0) return at::empty(size, self.options());
  if (const auto order = DenseOrder(size, stride)) {
    return DenseView(self, size, *order, offset, count);
  }
  const auto options = self.options().dtype(at::kLong);
  at::Tensor places = at::full({}, offset, options);
  for (size_t i = 0; i < size.size(); ++i) {
    places = at::add(at::unsqueeze_copy(places, -1),
                     at::mul(at::arange(size[i], options), stride[i]));
  }
  return at::take(self, places);
}

// The places of the elements of `like`.
inline at::Tensor PlacesIn(const at::Tensor& like) {
  const auto options = like.options().dtype(at::kLong);
  return at::reshape(at::arange(like.numel(), options), like.sizes());
}

// PyTorch makes a tensor in the order of memory and a view of it in the order
// asked for. XLA chooses the order in memory itself.
inline at::Tensor EmptyPermuted(c10::SymIntArrayRef size,
                                at::IntArrayRef physical_layout,
                                std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout> layout,
                                std::optional<at::Device> device,
                                std::optional<bool> pin_memory) {
  std::vector<int64_t> dims = physical_layout.vec();
  std::sort(dims.begin(), dims.end());
  bool is_permutation = dims.size() == size.size();
  for (size_t i = 0; i < dims.size(); ++i) {
    is_permutation &= dims[i] == static_cast<int64_t>(i);
  }
  TORCH_CHECK(is_permutation, "empty_permuted: physical_layout is ",
              physical_layout, ", but must have each of the ", size.size(),
              " dimensions once");
  return at::empty_symint(size, dtype, layout, device, pin_memory,
                          std::nullopt);
}

// The upstream kernel writes to consecutive elements, whatever the strides are.
inline at::Tensor AsStridedScatter(const at::Tensor& self,
                                   const at::Tensor& src, at::IntArrayRef size,
                                   at::IntArrayRef stride,
                                   std::optional<int64_t> storage_offset) {
  if (!DenseOrder(size, stride)) {
    if (src.sizes() == size && !Overlaps(size, stride)) {
      const at::Tensor places =
          AsStridedCopy(PlacesIn(self), size, stride, storage_offset);
      return at::reshape(
          at::index_copy(at::reshape(self, {-1}), 0, at::reshape(places, {-1}),
                         at::reshape(src.to(self.scalar_type()), {-1})),
          self.sizes());
    }
    return OnCpu<at::_ops::as_strided_scatter>(self, src, size, stride,
                                               storage_offset);
  }
  return Upstream::as_strided_scatter(self, src.to(self.scalar_type()), size,
                                      stride, storage_offset);
}

// A view of the diagonals of `self` as a slice: dimensions `dim1` and `dim2` as
// one, the last.
class Diagonals {
 public:
  Diagonals(at::IntArrayRef sizes, int64_t offset, int64_t dim1, int64_t dim2) {
    const int64_t rank = static_cast<int64_t>(sizes.size());
    dim1 = at::maybe_wrap_dim(dim1, rank);
    dim2 = at::maybe_wrap_dim(dim2, rank);
    TORCH_CHECK(dim1 != dim2, "diagonal dimensions cannot be identical ", dim1,
                ", ", dim2);
    for (int64_t i = 0; i < rank; ++i) {
      if (i != dim1 && i != dim2) order_.push_back(i);
    }
    for (const int64_t i : order_) shape_.push_back(sizes[i]);
    order_.push_back(dim1);
    order_.push_back(dim2);
    const int64_t rows = sizes[dim1], columns = sizes[dim2];
    flat_ = shape_;
    flat_.push_back(rows * columns);
    shape_.push_back(rows);
    shape_.push_back(columns);
    const int64_t row = std::max<int64_t>(-offset, 0);
    const int64_t column = std::max<int64_t>(offset, 0);
    const int64_t length =
        std::max<int64_t>(std::min(rows - row, columns - column), 0);
    step_ = columns + 1;
    start_ = length == 0 ? 0 : row * columns + column;
    end_ = length == 0 ? 0 : start_ + (length - 1) * step_ + 1;
  }

  at::Tensor Read(const at::Tensor& self) const {
    return at::slice_copy(Flat(self), -1, start_, end_, step_);
  }

  at::Tensor Write(const at::Tensor& self, const at::Tensor& values) const {
    if (end_ == 0) return self.clone();
    const at::Tensor written =
        at::slice_scatter(Flat(self), values, -1, start_, end_, step_);
    std::vector<int64_t> inverse(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) inverse[order_[i]] = i;
    return at::permute_copy(at::view_copy(written, shape_), inverse);
  }

 private:
  at::Tensor Flat(const at::Tensor& self) const {
    return at::view_copy(at::permute_copy(self, order_), flat_);
  }

  std::vector<int64_t> order_;  // the diagonal's dimensions are the last
  std::vector<int64_t> shape_;  // in this order
  std::vector<int64_t> flat_;
  int64_t start_, end_, step_;
};

// The upstream kernels use the last two dimensions for the diagonals of any
// two.
inline at::Tensor DiagonalCopy(const at::Tensor& self, int64_t offset,
                               int64_t dim1, int64_t dim2) {
  return Diagonals(self.sizes(), offset, dim1, dim2).Read(self);
}

inline at::Tensor DiagonalScatter(const at::Tensor& self, const at::Tensor& src,
                                  int64_t offset, int64_t dim1, int64_t dim2) {
  return Diagonals(self.sizes(), offset, dim1, dim2)
      .Write(self, src.to(self.scalar_type()));
}

inline at::Tensor DiagonalBackward(const at::Tensor& grad_output,
                                   at::IntArrayRef input_sizes, int64_t offset,
                                   int64_t dim1, int64_t dim2) {
  return DiagonalScatter(at::zeros(input_sizes, grad_output.options()),
                         grad_output, offset, dim1, dim2);
}

// The upstream kernel returns the first tensor if all are empty.
inline at::Tensor Cat(const at::ITensorListRef& tensors, int64_t dim) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.dim() != 1 || tensor.numel() != 0) {
      return Upstream::cat(tensors, dim);
    }
  }
  return at::empty(
      {0}, tensors.front().options().dtype(at::native::result_type(tensors)));
}

inline at::Tensor Gather(const at::Tensor& self, int64_t dim,
                         const at::Tensor& index, bool sparse_grad) {
  if (index.numel() == 0) return at::empty(index.sizes(), self.options());
  if (self.dim() == index.dim() && self.dim() != 0) {
    return Upstream::gather(self, dim, index, sparse_grad);
  }
  return at::view_copy(
      Upstream::gather(AsVector(self), dim, AsVector(index), sparse_grad),
      index.sizes());
}

template <typename Value>
at::Tensor& IndexFill_(at::Tensor& self, int64_t dim, const at::Tensor& index,
                       const Value& value) {
  if (self.dim() != 0) return Upstream::index_fill_(self, dim, index, value);
  if (index.numel() == 0) return self;
  at::Tensor filled;
  if constexpr (std::is_same_v<Value, at::Scalar>) {
    filled = at::full({}, value, self.options());
  } else {
    filled = value.to(self.options());
  }
  Upstream::_copy_from(filled, self, /*non_blocking=*/false);
  return self;
}

// A tensor without dimensions has no dimension of size 1.
inline at::Tensor SqueezeCopyDim(const at::Tensor& self, int64_t dim) {
  return self.dim() == 0 ? at::clone(self) : Upstream::squeeze_copy(self, dim);
}

inline at::Tensor SqueezeCopyDims(const at::Tensor& self,
                                  at::IntArrayRef dims) {
  return self.dim() == 0 ? at::clone(self) : Upstream::squeeze_copy(self, dims);
}

// The upstream kernel cannot concatenate nothing.
inline at::Tensor Repeat(const at::Tensor& self, at::IntArrayRef repeats) {
  const bool is_empty =
      self.numel() == 0 ||
      std::find(repeats.begin(), repeats.end(), 0) != repeats.end();
  const size_t rank = static_cast<size_t>(self.dim());
  if (!is_empty || repeats.size() < rank)
    return Upstream::repeat(self, repeats);
  std::vector<int64_t> sizes = repeats.vec();
  for (size_t i = 0; i < rank; ++i) {
    sizes[sizes.size() - rank + i] *= self.size(static_cast<int64_t>(i));
  }
  return at::empty(sizes, self.options());
}

// PyTorch writes to views of the result, which an XLA tensor does not have.
inline at::Tensor ChunkCat(at::TensorList tensors, int64_t dim,
                           int64_t num_chunks) {
  return OnCpu<at::_ops::_chunk_cat>(tensors, dim, num_chunks);
}

// The upstream kernels refuse padding that takes elements away.
template <typename Operator, auto kUpstream>
at::Tensor Pad(const at::Tensor& self, at::IntArrayRef padding) {
  const bool takes_away = std::any_of(padding.begin(), padding.end(),
                                      [](int64_t size) { return size < 0; });
  return takes_away ? OnCpu<Operator>(self, padding) : kUpstream(self, padding);
}

template <typename Operator, auto kUpstream>
at::Tensor PadBackward(const at::Tensor& grad_output, const at::Tensor& self,
                       at::IntArrayRef padding) {
  const bool takes_away = std::any_of(padding.begin(), padding.end(),
                                      [](int64_t size) { return size < 0; });
  return takes_away ? OnCpu<Operator>(grad_output, self, padding)
                    : kUpstream(grad_output, self, padding);
}

// The indices of the elements of a dimension's windows, for which torch_xla has
// no kernels.
inline at::Tensor WindowIndices(int64_t length, int64_t size, int64_t step,
                                const at::Tensor& like) {
  TORCH_CHECK(step > 0, "step is ", step, " but must be > 0");
  TORCH_CHECK(size <= length, "maximum size for tensor at dimension is ",
              length, " but size is ", size);
  const auto options = like.options().dtype(at::kLong);
  const at::Tensor starts =
      at::mul(at::arange((length - size) / step + 1, options), step);
  return at::view_copy(at::add(starts.unsqueeze(1), at::arange(size, options)),
                       {-1});
}

inline at::Tensor UnfoldCopy(const at::Tensor& self, int64_t dimension,
                             int64_t size, int64_t step) {
  if (self.dim() == 0)
    return UnfoldCopy(self.unsqueeze(0), 0, size, step).squeeze(0);
  const int64_t dim = at::maybe_wrap_dim(dimension, self.dim());
  const at::Tensor indices = WindowIndices(self.size(dim), size, step, self);
  std::vector<int64_t> shape = self.sizes().vec();
  shape[dim] = (self.size(dim) - size) / step + 1;
  shape.insert(shape.begin() + dim + 1, size);
  return at::movedim(at::view_copy(at::index_select(self, dim, indices), shape),
                     dim + 1, -1);
}

inline at::Tensor UnfoldBackward(const at::Tensor& grad_in,
                                 at::IntArrayRef input_sizes, int64_t dimension,
                                 int64_t size, int64_t step) {
  const at::Tensor zeros = at::zeros(input_sizes, grad_in.options());
  if (input_sizes.empty()) return at::sum(grad_in);
  const int64_t dim =
      at::maybe_wrap_dim(dimension, static_cast<int64_t>(input_sizes.size()));
  const at::Tensor indices =
      WindowIndices(input_sizes[dim], size, step, grad_in);
  std::vector<int64_t> shape = input_sizes.vec(), windows = shape;
  shape[dim] = indices.size(0);
  windows[dim] = (input_sizes[dim] - size) / step + 1;
  windows.push_back(size);
  // istft passes windows that PyTorch broadcasts to the batch.
  const at::Tensor each = at::expand_copy(grad_in, windows);
  return at::index_add(zeros, dim, indices,
                       at::reshape(at::movedim(each, -1, dim + 1), shape));
}

// The upstream kernel divides by the size of a dimension, and so crashes the
// process if the size is 0.
inline at::Tensor Roll(const at::Tensor& self, at::IntArrayRef shifts,
                       at::IntArrayRef dims) {
  return self.numel() == 0 ? at::clone(self)
                           : Upstream::roll(self, shifts, dims);
}

// A bound of a slice, which may lie before the first element: x[-512:] of fewer
// elements is x. The upstream kernels refuse it.
inline std::optional<int64_t> SliceBound(const at::Tensor& self, int64_t dim,
                                         std::optional<int64_t> bound) {
  if (!bound.has_value() || self.dim() == 0) return bound;
  return std::max(*bound, -self.size(dim));
}

inline at::Tensor SliceCopy(const at::Tensor& self, int64_t dim,
                            std::optional<int64_t> start,
                            std::optional<int64_t> end, int64_t step) {
  return Upstream::slice_copy(self, dim, SliceBound(self, dim, start),
                              SliceBound(self, dim, end), step);
}

inline at::Tensor SliceScatter(const at::Tensor& base,
                               const at::Tensor& mutated_view, int64_t dim,
                               std::optional<int64_t> start,
                               std::optional<int64_t> end, int64_t step) {
  return Upstream::slice_scatter(base, mutated_view.to(base.scalar_type()), dim,
                                 SliceBound(base, dim, start),
                                 SliceBound(base, dim, end), step);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_INDEXING_H_
