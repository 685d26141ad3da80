// Views for functionalization: XLA tensors have no views, so a write to a view
// becomes a new value of the viewed tensor.
#ifndef TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_VIEWS_H_
#define TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_VIEWS_H_

#include <ATen/EmptyTensor.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_pad_circular_native.h>
#include <ATen/ops/detach_ops.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "torch_xla_ext/csrc/aten_overrides/checked_call.h"
#include "torch_xla_ext/csrc/aten_overrides/in_place_views.h"
#include "torch_xla_ext/csrc/aten_overrides/indexing.h"
#include "torch_xla_ext/csrc/aten_overrides/strides.h"
#include "torch_xla_ext/csrc/aten_overrides/upstream_kernels.h"

namespace torch_xla_ext::aten_overrides {

// Which elements a write has changed.
inline at::Tensor IsChanged(const at::Tensor& before, const at::Tensor& after) {
  const at::Tensor differs = at::ne(after, before);
  if (!before.is_floating_point() && !before.is_complex()) return differs;
  return at::logical_and(differs, at::logical_not(at::logical_and(
                                      at::isnan(after), at::isnan(before))));
}

// `base` after a write to a view of it with elements that share memory:
// `place` are their places in `base`. Of the copies of an element, a changed
// one is taken.
inline at::Tensor OfOverlapping(const at::Tensor& base, const at::Tensor& view,
                                const at::Tensor& place) {
  const at::Tensor flat = at::reshape(base, {-1});
  const at::Tensor places = at::reshape(place, {-1});
  const at::Tensor after = at::reshape(view, {-1});
  const int64_t count = base.numel();
  // Copies that were not written to go to an additional element, which is
  // dropped.
  const at::Tensor target =
      at::where(IsChanged(at::index_select(flat, 0, places), after), places,
                at::full({}, count, places.options()));
  const at::Tensor longer = at::cat({flat, at::zeros({1}, flat.options())});
  const at::Tensor written = at::index_copy(longer, 0, target, after);
  return at::reshape(at::slice(written, 0, 0, count), base.sizes());
}

// `base` with its windows replaced.
inline at::Tensor WithWindows(const at::Tensor& base, const at::Tensor& windows,
                              int64_t dimension, int64_t size, int64_t step) {
  if (base.dim() == 0) return at::view_copy(windows, at::IntArrayRef());
  if (size > step) {
    return OfOverlapping(
        base, windows, at::unfold_copy(PlacesIn(base), dimension, size, step));
  }
  const int64_t dim = at::maybe_wrap_dim(dimension, base.dim());
  const at::Tensor indices = WindowIndices(base.size(dim), size, step, base);
  std::vector<int64_t> shape = base.sizes().vec();
  shape[dim] = indices.size(0);
  return at::index_copy(base, dim, indices,
                        at::reshape(at::movedim(windows, -1, dim + 1), shape));
}

// The function of a view whose elements may share memory. PyTorch's record of a
// view has no name, but tells the type of its function.
struct OverlappingView {
  std::function<at::Tensor(const at::Tensor& base, bool reapply_views)> forward;
  bool reapply_views;

  at::Tensor operator()(const at::Tensor& base, int64_t) const {
    return forward(base, reapply_views);
  }
};

// The view `forward(self)`; after a write to it, the viewed tensor is
// `reverse(base, view)`. Both functions also receive whether to make views or
// copies of them.
template <typename Forward, typename Reverse>
at::Tensor AsView(const at::Tensor& self, bool has_symbolic_inputs,
                  const Forward& forward, const Reverse& reverse) {
  namespace functionalization = at::functionalization;
  const bool is_functional = functionalization::impl::isFunctionalTensor(self);
  const bool reapply_views =
      !is_functional ||
      functionalization::impl::getFunctionalizationReapplyViewsTLS();
  const OverlappingView apply{forward, reapply_views};
  const at::AutoDispatchSkipFunctionalize guard;
  if (!is_functional) return apply(self, 0);
  const at::Tensor view =
      apply(functionalization::impl::from_functional_tensor(self), 0);
  // Like all XLA tensors, the view has the strides of a contiguous tensor.
  return at::detail::make_tensor<at::FunctionalTensorWrapper>(
      view, functionalization::impl::unsafeGetFunctionalWrapper(self),
      functionalization::ViewMeta(
          apply,
          [=](const at::Tensor& base, const at::Tensor& view, int64_t) {
            return reverse(base, view);
          },
          has_symbolic_inputs));
}

// The view `self.unfold(...)`. In PyTorch's own registration, a write to it
// sets elements outside of all windows to 0, because unfold_backward does not
// know them.
inline at::Tensor UnfoldAsView(const at::Tensor& self, int64_t dimension,
                               int64_t size, int64_t step) {
  return AsView(
      self, /*has_symbolic_inputs=*/false,
      [=](const at::Tensor& base, bool reapply_views) {
        return reapply_views
                   ? at::_ops::unfold::call(base, dimension, size, step)
                   : at::_ops::unfold_copy::call(base, dimension, size, step);
      },
      [=](const at::Tensor& base, const at::Tensor& windows) {
        if (base.is_xla() &&
            !base.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
          return WithWindows(base, windows, dimension, size, step);
        }
        return at::unfold_backward_symint(windows, base.sym_sizes(), dimension,
                                          size, step);
      });
}

// `base` after a write to a view that expands it. In PyTorch, all copies of an
// element share memory; here a changed copy becomes the element's value.
inline at::Tensor OfExpanded(const at::Tensor& base, const at::Tensor& view) {
  const int64_t num_new = view.dim() - base.dim();
  std::vector<int64_t> expanded, kept, shape = {-1};
  for (int64_t i = 0; i < view.dim(); ++i) {
    const bool is_kept = i >= num_new && base.size(i - num_new) == view.size(i);
    (is_kept ? kept : expanded).push_back(i);
    if (is_kept) shape.push_back(view.size(i));
  }
  if (view.numel() == 0) return at::clone(base);
  std::vector<int64_t> order = expanded;
  order.insert(order.end(), kept.begin(), kept.end());
  const auto flat = [&](const at::Tensor& tensor) {
    return at::reshape(at::permute(tensor, order), shape);
  };
  const at::Tensor after = flat(view);
  const at::Tensor is_changed =
      IsChanged(flat(at::expand_copy(base, view.sizes())), after);
  const at::Tensor place =
      at::argmax(is_changed.to(at::kInt), 0, /*keepdim=*/true);
  return at::reshape(at::gather(after, 0, place), base.sizes());
}

// The view `self.expand(...)`. In PyTorch's own registration, a write to it
// adds the changes of all copies of an element: twice the change if two copies
// were written to, and NaN for an infinity.
inline at::Tensor ExpandAsView(const at::Tensor& self, at::SymIntArrayRef size,
                               bool implicit) {
  const std::vector<c10::SymInt> sizes = size.vec();
  TORCH_CHECK(static_cast<int64_t>(sizes.size()) >= self.dim(),
              "expand: the number of sizes provided (", sizes.size(),
              ") must be greater or equal to the number of dimensions in the "
              "tensor (",
              self.dim(), ")");
  return AsView(
      self,
      std::any_of(
          sizes.begin(), sizes.end(),
          [](const c10::SymInt& number) { return number.is_symbolic(); }),
      [=](const at::Tensor& base, bool reapply_views) {
        return reapply_views
                   ? at::_ops::expand::call(base, sizes, implicit)
                   : at::_ops::expand_copy::call(base, sizes, implicit);
      },
      [=](const at::Tensor& base, const at::Tensor& view) {
        if (base.is_xla() &&
            !base.unsafeGetTensorImpl()->has_symbolic_sizes_strides() &&
            !view.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
          return OfExpanded(base, view);
        }
        return base + at::sum_to(view - base.expand_symint(view.sym_sizes()),
                                 base.sym_sizes(),
                                 /*always_return_non_view=*/true);
      });
}

// Whether as_strided of a tensor with `numel` elements stays inside.
inline bool IsWithin(int64_t numel, at::IntArrayRef size,
                     at::IntArrayRef stride, int64_t offset) {
  int64_t last = offset;
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] == 0) return true;
    last += (size[i] - 1) * stride[i];
  }
  return offset >= 0 && last < numel;
}

// The tensor that `self` is a view of. Both share a storage: a write to a view
// of one is a write to the other.
inline at::Tensor BaseOf(const at::Tensor& self) {
  namespace functionalization = at::functionalization;
  functionalization::impl::sync(self);
  auto* const wrapper =
      functionalization::impl::unsafeGetFunctionalWrapper(self);
  const at::Tensor base = at::detail::make_tensor<at::FunctionalTensorWrapper>(
      FunctionalStorageOf(self)->base());
  base.unsafeGetTensorImpl()->set_storage_keep_dtype(wrapper->storage());
  return base;
}

// Whether the steps lead to the same elements through the view itself, with the
// strides that it reports, and through its base tensor.
inline bool LeadToTheSame(const at::Tensor& strided, at::IntArrayRef size,
                          at::IntArrayRef stride) {
  constexpr int64_t kMost = int64_t{1} << 20;  // elements to compare
  const int64_t begin = strided.storage_offset();
  const int64_t end =
      begin + at::detail::computeStorageNbytes(
                  strided.sizes(), strided.strides(), /*itemsize_bytes=*/1);
  if (end > kMost || !IsWithin(end, size, stride, begin)) return false;
  const at::AutoDispatchSkipFunctionalize guard;
  const at::Tensor places = at::arange(end, at::kLong);
  const at::Tensor of_view =
      at::as_strided(places, strided.sizes(), strided.strides(), begin)
          .contiguous();
  return at::equal(at::as_strided(of_view, size, stride, 0),
                   at::as_strided(places, size, stride, begin));
}

// The tensor whose elements as_strided of a view of an XLA tensor steps
// through.
struct Steps {
  bool is_of_base;
  std::optional<int64_t> offset;
};

// PyTorch steps through the elements of the viewed tensor. XLA tensors report
// that they are row-major and begin at 0, so a program that computes steps from
// this means steps through the view itself; both are the same if the view has
// consecutive elements. The base's elements are used if the program gives an
// offset, or steps that leave the view.
inline Steps StepsOf(const at::Tensor& self, const at::Tensor& strided,
                     at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<int64_t> offset) {
  const int64_t begin = strided.storage_offset();
  const bool is_ambiguous = offset == 0 && begin != 0 && size == self.sizes() &&
                            stride == self.strides();
  TORCH_CHECK(
      !is_ambiguous,
      "as_strided: the offset 0 is the first element of the tensor that this "
      "is a view of, but the size and stride are the view's own. Please call "
      "as_strided() of that tensor, or without an offset, which begins at the "
      "first element of the view.");
  const bool is_whole = size == self.sizes();
  const bool is_of_base = !strided.is_contiguous() && is_whole &&
                          stride == strided.strides() &&
                          offset.value_or(begin) == begin;
  if (!is_of_base && (!offset || begin == 0) &&
      IsWithin(self.numel(), size, stride, offset.value_or(0))) {
    TORCH_CHECK(
        strided.is_contiguous() || (is_whole && stride == self.strides()) ||
            LeadToTheSame(strided, size, stride),
        "as_strided: in PyTorch, this view has the strides ", strided.strides(),
        ", but XLA tensors say that they are row-major, so that the stride ",
        stride,
        " may be of either. Please call as_strided() of the tensor "
        "that this is a view of, or of view.contiguous().");
    return {/*is_of_base=*/false, offset};
  }
  TORCH_CHECK(
      !at::GradMode::is_enabled() || !self.requires_grad(), "as_strided: size ",
      size, ", stride ", stride, " and offset ", offset.value_or(begin),
      " are of the tensor that this is a view of, for which there is no "
      "gradient. Please call as_strided() of that tensor, or of "
      "view.detach().");
  return {/*is_of_base=*/true, offset.value_or(begin)};
}

// The tensor whose elements the steps are through, if that is known.
inline std::optional<Steps> KnownSteps(
    const at::Tensor& self, at::SymIntArrayRef size, at::SymIntArrayRef stride,
    const std::optional<c10::SymInt>& offset) {
  if (!self.is_xla()) return std::nullopt;
  const std::optional<at::Tensor> strided = WithStrides(self);
  const auto sizes = c10::asIntArrayRefSlowOpt(size);
  const auto strides = c10::asIntArrayRefSlowOpt(stride);
  if (!strided || !sizes || !strides || sizes->size() != strides->size() ||
      (offset && offset->is_symbolic()) ||
      at::functionalization::impl::isBaseTensor(self)) {
    return std::nullopt;
  }
  return StepsOf(
      self, *strided, *sizes, *strides,
      offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

// The view `self.as_strided(...)`.
inline at::Tensor AsStridedAsView(const at::Tensor& self,
                                  at::SymIntArrayRef size,
                                  at::SymIntArrayRef stride,
                                  std::optional<c10::SymInt> offset) {
  const std::optional<Steps> steps = KnownSteps(self, size, stride, offset);
  if (steps && steps->is_of_base) {
    return AsStridedAsView(BaseOf(self), size, stride,
                           c10::SymInt(*steps->offset));
  }
  const std::vector<c10::SymInt> sizes = size.vec(), strides = stride.vec();
  const auto is_symbolic = [](const c10::SymInt& number) {
    return number.is_symbolic();
  };
  return AsView(
      self,
      std::any_of(sizes.begin(), sizes.end(), is_symbolic) ||
          std::any_of(strides.begin(), strides.end(), is_symbolic) ||
          (offset && offset->is_symbolic()),
      [=](const at::Tensor& base, bool reapply_views) {
        return reapply_views
                   ? at::_ops::as_strided::call(base, sizes, strides, offset)
                   : at::_ops::as_strided_copy::call(base, sizes, strides,
                                                     offset);
      },
      [=](const at::Tensor& base, const at::Tensor& view) {
        const auto known_sizes = c10::asIntArrayRefSlowOpt(sizes);
        const auto known_strides = c10::asIntArrayRefSlowOpt(strides);
        if (base.is_xla() && known_sizes && known_strides &&
            Overlaps(*known_sizes, *known_strides)) {
          return OfOverlapping(base, view,
                               at::as_strided_copy_symint(PlacesIn(base), sizes,
                                                          strides, offset));
        }
        return at::as_strided_scatter_symint(base, view, sizes, strides,
                                             offset);
      });
}

// PyTorch's functionalization of as_strided_copy, as_strided_scatter and
// as_strided_ takes all steps for those through the view.
struct AsStridedCopyOfView {
  using Kernel =
      RegisteredKernel<at::_ops::as_strided_copy, AsStridedCopyOfView,
                       c10::DispatchKey::Functionalize>;

  static at::Tensor Call(c10::DispatchKeySet keys, const at::Tensor& self,
                         at::SymIntArrayRef size, at::SymIntArrayRef stride,
                         std::optional<c10::SymInt> offset) {
    if (KnownSteps(self, size, stride, offset)) {
      return at::clone(AsStridedAsView(self, size, stride, offset));
    }
    return Kernel::Call<at::Tensor, const at::Tensor&, at::SymIntArrayRef,
                        at::SymIntArrayRef, std::optional<c10::SymInt>>(
        keys, self, size, stride, offset);
  }
};

struct AsStridedScatterOfView {
  using Kernel =
      RegisteredKernel<at::_ops::as_strided_scatter, AsStridedScatterOfView,
                       c10::DispatchKey::Functionalize>;

  static at::Tensor Call(c10::DispatchKeySet keys, const at::Tensor& self,
                         const at::Tensor& src, at::SymIntArrayRef size,
                         at::SymIntArrayRef stride,
                         std::optional<c10::SymInt> offset) {
    const std::optional<Steps> steps = KnownSteps(self, size, stride, offset);
    TORCH_CHECK(!steps || !steps->is_of_base, "as_strided_scatter: size ", size,
                " and stride ", stride,
                " are of the tensor that this is a view of. Please call "
                "as_strided_scatter() of that tensor.");
    return Kernel::Call<at::Tensor, const at::Tensor&, const at::Tensor&,
                        at::SymIntArrayRef, at::SymIntArrayRef,
                        std::optional<c10::SymInt>>(keys, self, src, size,
                                                    stride, offset);
  }
};

struct CheckedAsStrided {
  using Kernel = RegisteredKernel<at::_ops::as_strided_, CheckedAsStrided,
                                  c10::DispatchKey::Functionalize>;

  static const at::Tensor& Call(c10::DispatchKeySet keys,
                                const at::Tensor& self, at::SymIntArrayRef size,
                                at::SymIntArrayRef stride,
                                std::optional<c10::SymInt> offset) {
    const std::optional<Steps> steps = KnownSteps(self, size, stride, offset);
    TORCH_CHECK(!steps || !steps->is_of_base, "as_strided_: size ", size,
                " and stride ", stride,
                " are of the tensor that this is a view of. Please call "
                "as_strided(), which returns another view.");
    return Kernel::Call<const at::Tensor&, const at::Tensor&,
                        at::SymIntArrayRef, at::SymIntArrayRef,
                        std::optional<c10::SymInt>>(keys, self, size, stride,
                                                    offset);
  }
};

inline void RegisterAsStridedOfViews(torch::Library& m) {
  AsStridedCopyOfView::Kernel::Replace(m, TORCH_FN(AsStridedCopyOfView::Call));
  AsStridedScatterOfView::Kernel::Replace(
      m, TORCH_FN(AsStridedScatterOfView::Call));
  CheckedAsStrided::Kernel::Replace(m, TORCH_FN(CheckedAsStrided::Call));
}

// PyTorch calls as_strided with the tensor's own offset, which XLA does not
// know for a view.
inline at::Tensor& FillDiagonal_(at::Tensor& self, const at::Scalar& value,
                                 bool wrap) {
  TORCH_CHECK(self.dim() > 1, "dimensions must larger than 1");
  if (self.dim() == 2) {
    self.diagonal().fill_(value);
    const int64_t period = self.size(1) + 1;
    for (int64_t row = period; wrap && row < self.size(0); row += period) {
      self.slice(0, row).diagonal().fill_(value);
    }
    return self;
  }
  at::Tensor diagonal = self;
  for (int64_t i = 1; i < self.dim(); ++i) {
    TORCH_CHECK(self.size(i) == self.size(0),
                "all dimensions of input must be of equal length");
    diagonal = diagonal.diagonal(0, 0, -1);
  }
  diagonal.fill_(value);
  return self;
}

// PyTorch's kernel refers to the sizes of a view's value while it makes slices,
// which replace the value if the view's base has been written to.
inline at::Tensor PadCircular(const at::Tensor& self,
                              c10::SymIntArrayRef padding) {
  if (at::functionalization::impl::isFunctionalTensor(self)) {
    at::functionalization::impl::sync(self);
  }
  return at::native::_pad_circular_symint(self, padding);
}

// Packs on the device. The step counts are a CPU tensor, as the lengths are:
// PyTorch's own registration makes a functional tensor from it, whose data the
// recurrent layers cannot read.
inline std::tuple<at::Tensor, at::Tensor> PackPaddedSequence(
    const at::Tensor& input, const at::Tensor& lengths, bool batch_first) {
  namespace functionalization = at::functionalization::impl;
  const bool is_functional = functionalization::isFunctionalTensor(input);
  const auto unwrapped = [](const at::Tensor& tensor) {
    return functionalization::isFunctionalTensor(tensor)
               ? functionalization::from_functional_tensor(tensor)
               : tensor;
  };
  if (is_functional) functionalization::sync(input);
  const at::AutoDispatchSkipFunctionalize guard;
  auto [data, counts] = at::_pack_padded_sequence(
      unwrapped(input), unwrapped(lengths), batch_first);
  if (!is_functional) return {data, counts};
  return {functionalization::to_functional_tensor(data),
          input.is_xla() ? counts
                         : functionalization::to_functional_tensor(counts)};
}

// In a Python dispatch mode, returns the tensor that the mode returned and so
// recognizes. PyTorch makes a new tensor and informs the mode, but not for
// functionalized tensors.
inline at::Tensor Detach(c10::DispatchKeySet keys, const at::Tensor& self) {
  if (c10::impl::TorchDispatchModeTLS::stack_len() > 0 &&
      !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python)) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    return at::_ops::detach::redispatch(
        keys & c10::after_ADInplaceOrView_keyset, self);
  }
  const at::AutoDispatchBelowAutograd guard;
  return at::_ops::detach::redispatch(keys & c10::after_autograd_keyset, self);
}

}  // namespace torch_xla_ext::aten_overrides

#endif  // TORCH_XLA_EXT_CSRC_ATEN_OVERRIDES_VIEWS_H_
